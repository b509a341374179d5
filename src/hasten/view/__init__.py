"""How numbers are written, and plots: SVG that needs no network and follows the page's colours."""
