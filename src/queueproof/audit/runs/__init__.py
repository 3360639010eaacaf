"""Two runs of an evaluation, compared answer by answer."""
