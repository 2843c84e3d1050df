"""Translate with a model from the Hub, where vanilla-transformer is not installed."""

from importlib.util import find_spec

from transformers import pipeline

assert find_spec("vanilla_transformer") is None

# The repo holds the model's code; trust_remote_code lets it run, a revision pins what is run.
translator = pipeline("translation", model="alice/home-en-de", revision="v1", trust_remote_code=True)
for text in ["Turn off the light", "The device is not connected.", ""]:
    print(translator(text))
print(translator(["Enter the password", "Connection error"], batch_size=2, num_beams=2, num_return_sequences=2))
