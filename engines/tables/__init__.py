"""What each engine's own parser accepts, as tables; `flags.py` reads them."""
