"""What happened: numbers computed from groups, and how they are shown. Reads data types only, never an engine."""
