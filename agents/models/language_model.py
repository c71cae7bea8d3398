"""A causal language model as the learners use it: hidden states, logits, values.

The transformer's trunk and its output layer are called apart, so logits are made only at response
positions and a chunk at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agents.maths.logprobs import log_softmax
from agents.maths.token_statistics import TokenStatistics, token_statistics
from agents.models.activations import fuse_activations
from agents.models.cache import with_room
from agents.models.short_way import ShortWay, short_way

Step = Callable[[Tensor, Tensor | None], Tensor]
"""Feeds a row's next token; see `LanguageModel.read`."""

LOGITS_BYTES = 2**27
"""Largest tensor of logits in one piece; about four of that size are in work at a time."""


def fitting_positions(vocab_size: int) -> int:
    """Positions whose logits, in float32, make one piece."""
    return max(LOGITS_BYTES // (4 * vocab_size), 1)


@dataclass(frozen=True)
class Scored:
    """A policy's view of given responses; B responses, T positions. All 0 outside the mask."""

    logprobs: Tensor
    """Of the response's own tokens at the sampling temperature, [B, T], nats."""
    entropy: Tensor
    """[B, T], nats; 0 where it was not asked for."""
    kl: Tensor
    """KL(policy || reference) over the whole vocabulary, [B, T], nats; 0 without a reference."""
    values: Tensor
    """[B, T]; 0 without a value head."""


class LanguageModel(nn.Module):
    """A frozen or trained causal language model over the tokenizer's vocabulary."""

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, *, autocast: torch.dtype | None = None
    ) -> None:
        """Wrap a model.

        Args:
            model: a Hugging Face causal language model; its dropout is switched off, or the
                ratio before an update would not be 1.
            vocab_size: V of the game. Logits beyond it (padding rows of the embedding) are cut,
                in sampling and in scoring alike.
            autocast: lower precision in which matrices are multiplied, in sampling and in scoring
                alike; None: the weights' own.

        Raises:
            ValueError: if the model knows fewer tokens than the tokenizer, or computes its logits
                in a way this class does not reproduce.
        """
        super().__init__()
        self.model = model
        self.vocab_size = vocab_size
        self.autocast = autocast
        self._compiled: list[Callable[..., Any]] = []  # in a list: it is no further submodule
        # Where nothing is padding no mask is handed over, which some models take for a slip.
        vars(model.base_model)["warn_if_padding_and_no_attention_mask"] = _no_warning
        switch_off_dropout(model)
        fuse_activations(model)
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

    def compile_scoring(self) -> None:
        """Let torch compile the forward pass over whole responses; drawing tokens stays eager."""
        self._compiled = [torch.compile(self.model.base_model, dynamic=True)]

    def trunk(
        self, ids: Tensor, mask: Tensor | None, cache: Any = None, *, use_cache: bool = False
    ) -> tuple[Tensor, Any]:
        """Run the transformer without its output layer.

        Args:
            ids: tokens to feed, [B, S]; -1 (padding) is fed as token 0 and masked.
            mask: True = real token, over everything fed so far, [B, past + S]; None: all are real,
                which spares making and applying one.
            cache: key-value cache of an earlier call, or None.
            use_cache: return a cache as well.

        Returns:
            Hidden states of the last layer, [B, S, H], and the cache (None without `use_cache`).
        """
        extra: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions and mask is not None:
            # Positions count real tokens, so left padding moves nothing.
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
            extra["position_ids"] = positions[:, -ids.shape[1] :]
        with self.precision():
            output = self.model.base_model(
                input_ids=ids.clamp(min=0),
                attention_mask=None if mask is None else mask.long(),
                use_cache=use_cache,
                **extra,
            )
        return output.last_hidden_state, getattr(output, self._cache_name) if use_cache else None

    def read(self, prompt_ids: Tensor, mask: Tensor | None, room: int) -> tuple[Tensor, Step]:
        """Read prompts, to be followed by one token after the other.

        Args:
            prompt_ids: left-padded with -1, [B, Q].
            mask: True = real token, [B, Q]; None: all are real.
            room: tokens that may follow.

        Returns:
            Hidden states [B, Q, H], and how a token is fed: ids [B, 1] and a mask [B, past + 1], or
            None where all is real, -> hidden states [B, 1, H].
        """
        short = short_way(self.model.base_model, prompt_ids.shape[1] + room)
        if short is not None:
            return self._read_shortly(short, prompt_ids, mask)
        states, cache = self.trunk(prompt_ids, mask, use_cache=True)
        held = [with_room(cache, room)]

        def step(ids: Tensor, mask: Tensor | None) -> Tensor:
            hidden, held[0] = self.trunk(ids, mask, held[0], use_cache=True)
            return hidden

        return states, step

    def _read_shortly(
        self, short: ShortWay, prompt_ids: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Step]:
        def feed(ids: Tensor, mask: Tensor | None) -> Tensor:
            with self.precision():
                return short.feed(ids, mask)

        if mask is None:
            return feed(prompt_ids, None), feed
        states, cache = self.trunk(prompt_ids, mask, use_cache=True)
        short.take_over(cache)
        return states, feed

    def precision(self) -> AbstractContextManager[Any]:
        """In which matrices are multiplied as `autocast` says.

        Weights are brought to the lower precision once in the outermost of them.
        """
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the game's vocabulary; [..., H] -> [..., V]."""
        with self.precision():
            whole: Tensor = self.model.get_output_embeddings()(hidden)
        logits = whole[..., : self.vocab_size]
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
            [B, T, H]; position t has seen the prompt and the response tokens before t. Positions
            after a response hold anything.
        """
        fed, first = packed(prompt_ids, response_ids)
        run = self._compiled[0] if self._compiled else self.model.base_model
        fed = fed.clamp(min=0)
        with self.precision():
            # All padding is on the right, where no token that counts can see it: so nothing is
            # masked, and attention takes its quickest path.
            output = run(input_ids=fed, attention_mask=torch.ones_like(fed), use_cache=False)
        hidden: Tensor = output.last_hidden_state
        steps = torch.arange(response_ids.shape[1], device=fed.device)
        places = (first.unsqueeze(1) + steps).clamp(max=fed.shape[1] - 1)
        return hidden.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def score(
        self,
        prompt_ids: Tensor,
        response_ids: Tensor,
        temperature: float,
        *,
        reference: LanguageModel | None = None,
        ref_hidden: Tensor | None = None,
        ref_log_probs: Tensor | None = None,
        with_entropy: bool = True,
    ) -> Scored:
        """Score given responses in one forward pass, with gradient.

        Args:
            prompt_ids: left-padded with -1, [B, Q].
            response_ids: padded with -1 on the right, [B, T].
            temperature: of the sampling distribution.
            reference: what the divergence is taken from; None: `kl` is 0.
            ref_hidden: the reference's hidden states at the same positions, [B, T, H].
            ref_log_probs: what it says there, if that is at hand, [B, T, V].
            with_entropy: whether anybody looks at the entropy.
        """
        mask = response_ids >= 0
        hidden = counted(self.response_hidden(prompt_ids, response_ids), mask)
        found = self.statistics(
            hidden,
            counted(response_ids, mask),
            temperature,
            reference=reference,
            ref_hidden=None if ref_hidden is None else counted(ref_hidden, mask),
            ref_log_probs=None if ref_log_probs is None else counted(ref_log_probs, mask),
            with_entropy=with_entropy,
        )
        return Scored(
            logprobs=spread(found.logprobs, mask),
            entropy=spread(found.entropy, mask),
            kl=spread(found.kl, mask),
            values=spread(self.values(hidden), mask),
        )

    def statistics(
        self,
        hidden: Tensor,
        ids: Tensor,
        temperature: float,
        *,
        reference: LanguageModel | None = None,
        ref_hidden: Tensor | None = None,
        ref_log_probs: Tensor | None = None,
        with_entropy: bool = True,
    ) -> TokenStatistics:
        """What the distributions behind some hidden states say about the tokens drawn there.

        More positions than fit into `LOGITS_BYTES` are taken in pieces, and the logits of a piece
        are made again when its gradient is due instead of being kept.

        Args:
            hidden: [N, H].
            ids: the drawn tokens, [N].
            temperature: of the sampling distribution.
            reference: what the divergence is taken from, or None.
            ref_hidden: the reference's hidden states, [N, H'].
            ref_log_probs: what it says there, if that is at hand, [N, V].
            with_entropy: whether anybody looks at the entropy.
        """

        def piece(
            hidden: Tensor, ids: Tensor, ref_hidden: Tensor | None, said: Tensor | None
        ) -> TokenStatistics:
            if said is None and reference is not None and ref_hidden is not None:
                said = reference.log_probs(ref_hidden, temperature)
            return token_statistics(
                self.logits(hidden),
                ids,
                temperature,
                ref_log_probs=said,
                with_entropy=with_entropy,
            )

        rows = fitting_positions(self.vocab_size)
        if len(hidden) <= rows:
            return piece(hidden, ids, ref_hidden, ref_log_probs)
        parts = [
            checkpoint(
                piece,
                hidden[i : i + rows],
                ids[i : i + rows],
                None if ref_hidden is None else ref_hidden[i : i + rows],
                None if ref_log_probs is None else ref_log_probs[i : i + rows],
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for i in range(0, len(hidden), rows)
        ]
        return TokenStatistics(*(torch.cat(column) for column in zip(*parts, strict=True)))

    @torch.no_grad()
    def log_probs(self, hidden: Tensor, temperature: float) -> Tensor:
        """Of the whole vocabulary, without gradient; [..., H] -> [..., V], nats."""
        return log_softmax(self.logits(hidden), temperature)

    def distribution(self, prompt_ids: Tensor, response_ids: Tensor, temperature: float) -> Tensor:
        """Log-probabilities of the whole vocabulary at each response position, [B, T, V], nats.

        For small vocabularies and a look inside: nothing in training makes a tensor of this size.
        """
        return log_softmax(self.logits(self.response_hidden(prompt_ids, response_ids)), temperature)

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
        mode, autocast = self.model.training, self.autocast
        self.model.eval()
        self.autocast = None  # which rounds real models' logits by more than a fault would show
        try:
            with torch.no_grad():
                own, ours = self._probe()
        except Exception as error:  # whatever a foreign architecture raises here
            raise ValueError(f"{self._unsupported()} ({type(error).__name__}: {error})") from error
        finally:
            self.model.train(mode)
            self.autocast = autocast
        if not bool(torch.isfinite(own).all()):
            raise ValueError("model gives logits that are not finite: its weights hold NaN or inf")
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
        states, step = self.read(prompts, prompts >= 0, 1)
        fed = tokens[2].expand(2, 1)
        mask = torch.cat([prompts >= 0, torch.ones_like(fed, dtype=torch.bool)], dim=1)
        more = step(fed, mask)
        cached = self.logits(torch.stack([states[0, -1], more[0, -1]]))
        return torch.cat([plain, plain]), torch.cat([padded, cached])


def _no_warning(*args: Any) -> None:
    """In place of the library's guess that a token like the padding token is padding."""


def packed(prompt_ids: Tensor, response_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Prompts and responses without a gap between them, all padding on the right.

    Args:
        prompt_ids: left-padded with -1, [B, Q]; each row holds at least one token.
        response_ids: padded with -1 on the right, [B, T].

    Returns:
        The tokens to feed, [B, S] with S the longest row; the last response token, after which
        nothing is predicted, is left out. And the position of each prompt's last token, [B].
    """
    fed = torch.cat([prompt_ids, response_ids[:, :-1]], dim=1)
    real = fed >= 0
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)
    longest = max(int(real.sum(1).max()), 1)
    return fed.gather(1, order)[:, :longest], (prompt_ids >= 0).sum(1) - 1


def counted(values: Tensor, mask: Tensor) -> Tensor:
    """What belongs to the tokens that count; [B, T, ...] -> [N, ...], no copy if all count."""
    return values.flatten(0, 1) if bool(mask.all()) else values[mask]


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """Put what belongs to tokens where they stand; [N, ...] -> [B, T, ...], 0 elsewhere."""
    if bool(mask.all()):
        return values.view(*mask.shape, *values.shape[1:])
    whole = values.new_zeros(*mask.shape, *values.shape[1:])
    whole[mask] = values
    return whole


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

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, *, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__(model, vocab_size, autocast=autocast)
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

    def trainable_parameters(self) -> list[nn.Parameter]:
        """What the optimizer moves, in a fixed order."""
        return list(self.parameters())
