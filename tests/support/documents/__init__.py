"""The project's pages and recipes as tests read them, and a browser that shows pictures."""
