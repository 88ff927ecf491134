"""Carries decisions to the API server: what is read, in which order, and what is written under which proof."""
