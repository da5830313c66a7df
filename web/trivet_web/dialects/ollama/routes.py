"""All of them."""

from trivet_web.dialects.ollama import chat, embeddings, generate, listing, managing

BLUEPRINTS = (
    chat.blueprint,
    generate.blueprint,
    embeddings.blueprint,
    listing.blueprint,
    managing.blueprint,
)
