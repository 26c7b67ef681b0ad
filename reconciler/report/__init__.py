"""What a pass decided and did, told to people and machines: text, JSON, markdown, metrics, events.

Everything here turns a frozen value into another one or into text. Nothing here decides, acts,
reads a clock or knows where its text goes: `reconciler/cli` prints and `reconciler/loop` stores.
"""
