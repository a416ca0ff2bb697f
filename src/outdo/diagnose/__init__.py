"""What is wrong with a run, from its curves and answers: one pure function for each failure. Imports no engine."""
