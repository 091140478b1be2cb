"""The one place that turns a candidate into a real TRL trainer. Runs in child processes only."""
