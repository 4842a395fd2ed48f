"""A student for the Hugging Face hub: model card, files, upload."""
