"""Pure maths of the learners: tensors and plain numbers in, tensors out.

Nothing here knows a configuration, a tokenizer, a model or a framework of reinforcement learning.
Letters of the shapes: B responses, T response positions, V vocabulary.
"""
