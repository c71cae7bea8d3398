"""A causal language model as the learners use it: hidden states, logits, values.

The transformer's trunk and its output layer are called apart, so logits are made only at response
positions and a chunk at a time.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agents.maths.logprobs import entropy, gather_logprobs, log_softmax


@dataclass(frozen=True)
class Scored:
    """A policy's view of given responses; B responses, T positions, V vocabulary."""

    log_probs: Tensor
    """Of the whole vocabulary at the sampling temperature, [B, T, V], nats."""
    logprobs: Tensor
    """Of the response's own tokens, [B, T], nats; 0 outside the mask."""
    entropy: Tensor
    """[B, T], nats."""
    values: Tensor
    """[B, T]; 0 without a value head."""


class LanguageModel(nn.Module):
    """A frozen or trained causal language model over the tokenizer's vocabulary."""

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        """Wrap a model.

        Args:
            model: a Hugging Face causal language model; its dropout is switched off, or the
                ratio before an update would not be 1.
            vocab_size: V of the game. Logits beyond it (padding rows of the embedding) are cut,
                in sampling and in scoring alike.

        Raises:
            ValueError: if the model knows fewer tokens than the tokenizer, or computes its logits
                in a way this class does not reproduce.
        """
        super().__init__()
        self.model = model
        self.vocab_size = vocab_size
        switch_off_dropout(model)
        accepted = inspect.signature(model.base_model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        # The library renamed its cache within version 5.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._check_vocabulary()
        self._check_paths()

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return int(self.model.get_output_embeddings().weight.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.model.parameters()).device

    def trunk(
        self, ids: Tensor, mask: Tensor, cache: Any = None, *, use_cache: bool = False
    ) -> tuple[Tensor, Any]:
        """Run the transformer without its output layer.

        Args:
            ids: tokens to feed, [B, S]; -1 (padding) is fed as token 0 and masked.
            mask: True = real token, over everything fed so far, [B, past + S].
            cache: key-value cache of an earlier call, or None.
            use_cache: return a cache as well.

        Returns:
            Hidden states of the last layer, [B, S, H], and the cache (None without `use_cache`).
        """
        extra: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:
            # Positions count real tokens, so left padding moves nothing.
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
            extra["position_ids"] = positions[:, -ids.shape[1] :]
        output = self.model.base_model(
            input_ids=ids.clamp(min=0),
            attention_mask=mask.long(),
            use_cache=use_cache,
            **extra,
        )
        return output.last_hidden_state, getattr(output, self._cache_name) if use_cache else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the game's vocabulary; [..., H] -> [..., V]."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)[..., : self.vocab_size]
        config = self.model.config
        if getattr(config, "logits_scaling", None):
            logits = logits / config.logits_scaling
        if getattr(config, "logit_scale", None):
            logits = logits * config.logit_scale
        if getattr(config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / config.final_logit_softcapping)
            logits = logits * config.final_logit_softcapping
        return logits

    def response_hidden(self, prompt_ids: Tensor, response_ids: Tensor) -> Tensor:
        """Hidden states from which each response token is predicted.

        Args:
            prompt_ids: left-padded with -1, [B, Q].
            response_ids: padded with -1 on the right, [B, T], T at least 1.

        Returns:
            [B, T, H]; position t has seen the prompt and the response tokens before t.
        """
        fed = torch.cat([prompt_ids, response_ids[:, :-1]], dim=1)  # nothing follows the last one
        first = prompt_ids.shape[1] - 1
        hidden, _ = self.trunk(fed, fed >= 0)
        return hidden[:, first:]

    def score(self, prompt_ids: Tensor, response_ids: Tensor, temperature: float) -> Scored:
        """Score given responses in one forward pass; see `response_hidden` for the shapes."""
        hidden = self.response_hidden(prompt_ids, response_ids)
        log_probs = log_softmax(self.logits(hidden), temperature)
        mask = response_ids >= 0
        return Scored(
            log_probs=log_probs,
            logprobs=gather_logprobs(log_probs, response_ids, mask),
            entropy=entropy(log_probs),
            values=self.values(hidden),
        )

    def values(self, hidden: Tensor) -> Tensor:
        """Zeros: a plain language model has no critic; [..., H] -> [...]."""
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        return torch.zeros(hidden.shape[:-1], dtype=dtype, device=hidden.device)

    def _check_vocabulary(self) -> None:
        rows = int(self.model.get_output_embeddings().weight.shape[0])
        if rows < self.vocab_size:
            raise ValueError(
                f"model must know every token of its tokenizer: expected at least "
                f"{self.vocab_size} rows in its output layer, got {rows}"
            )

    def _check_paths(self) -> None:
        """Compare what the learners will compute with the model's own logits, on four tokens.

        Trunk and head apart, left padding and the key-value cache each have to give the logits of
        a plain forward; architectures that do not (a state in place of a cache, say) would train on
        wrong log-probabilities without a word.
        """
        mode = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                own, ours = self._probe()
        except Exception as error:  # whatever a foreign architecture raises here
            raise ValueError(f"{self._unsupported()} ({type(error).__name__}: {error})") from error
        finally:
            self.model.train(mode)
        loose = 5e-2 if own.dtype == torch.bfloat16 else 1e-3
        if not torch.allclose(own.float(), ours.float(), rtol=loose, atol=loose):
            raise ValueError(self._unsupported())

    def _unsupported(self) -> str:
        return (
            f"model of type {self.model.config.model_type!r} is not supported: its logits from "
            f"hidden states, behind left padding or with a key-value cache differ from its own"
        )

    def _probe(self) -> tuple[Tensor, Tensor]:
        """The model's own logits after 2 and 3 tokens, and ours in three ways; each [4, V]."""
        tokens = torch.arange(4, device=self.device).remainder(self.vocab_size)
        plain = self.model(input_ids=tokens.unsqueeze(0)).logits[0, 1:3, : self.vocab_size]
        padding = torch.full_like(tokens[:2], -1)
        prompts = torch.stack([torch.cat([padding, tokens[:2]]), tokens.flip(0)])
        padded = self.logits(self.response_hidden(prompts, tokens[2:].expand(2, 2))[0])
        states, cache = self.trunk(prompts, prompts >= 0, use_cache=True)
        fed = tokens[2].expand(2, 1)
        mask = torch.cat([prompts >= 0, torch.ones_like(fed, dtype=torch.bool)], dim=1)
        more, _ = self.trunk(fed, mask, cache, use_cache=True)
        cached = self.logits(torch.stack([states[0, -1], more[0, -1]]))
        return torch.cat([plain, plain]), torch.cat([padded, cached])


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout rate of a model to 0, layer drop included.

    Layers keep their rates under a dozen names; what is a plain number and called drop-something
    is one of them.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)
    config = getattr(model, "config", None)
    for name, value in vars(config).items() if config is not None else ():
        if isinstance(value, float) and ("drop" in name or name.endswith("_pdrop")):
            setattr(config, name, 0.0)


class ActorCritic(LanguageModel):
    """A trained language model with a value head on its last hidden layer."""

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        super().__init__(model, vocab_size)
        weight = next(model.parameters())
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        # Made without its usual random weights, which torch's global generator would draw. Zero:
        # before any update the critic says 0 everywhere, whatever the seed.
        self.value_head = nn.utils.skip_init(
            nn.Linear, self.hidden_size, 1, device=weight.device, dtype=dtype
        )
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def values(self, hidden: Tensor) -> Tensor:
        """The critic's estimate at each position; [..., H] -> [...]."""
        values: Tensor = self.value_head(hidden.to(self.value_head.weight.dtype)).squeeze(-1)
        return values
