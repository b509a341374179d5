"""Parts of pages and plots: SVG that needs no network and follows the page's colours, and tables for a terminal."""
