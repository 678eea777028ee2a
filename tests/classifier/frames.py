"""A data frame with columns of most kinds, whose label depends on some of them."""

import numpy as np
import pandas as pd


def clicks(rows=1200, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 10, rows)
    city = rng.choice(["Berlin", "Paris", "Rome", "Wien"], rows)
    frame = pd.DataFrame(
        {
            "city": pd.array(np.where(rng.random(rows) < 0.1, None, city)),
            "device": pd.Categorical(rng.choice(["phone", "tablet"], rows)),
            "age": np.where(rng.random(rows) < 0.1, np.nan, age),
            "visits": pd.array(rng.integers(0, 200, rows), "Int64"),
            "user_id": rng.integers(0, 50, rows),
            "member": pd.array(rng.random(rows) < 0.5, "boolean"),
            "tags": [list(rng.choice(["a", "b", "c"], k)) for k in rng.integers(0, 3, rows)],
            "at": pd.date_range("2024-01-01", periods=rows, freq="h", tz="Europe/Berlin"),
            "times_shown": rng.random(rows) + 0.5,
        }
    )
    frame.loc[::7, "visits"] = pd.NA
    score = (age - 40) / 10 + (city == "Rome") - (city == "Wien") + rng.normal(0, 1, rows)
    frame.insert(3, "clicked", np.where(score > 0, "yes", "no"))
    return frame


USES = {
    "label": "clicked",
    "time": "at",
    "group": "user_id",
    "weight": "times_shown",
    "categorical": ["visits"],
}
TIME_FEATURES = ["hour", "weekday"]
