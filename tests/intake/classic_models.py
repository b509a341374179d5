"""Tiny fitted estimators, as a user's own module makes them."""

from __future__ import annotations

import numpy as np


def numbers(rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Four features of very different sizes, and three classes of them."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 4)) * [1, 100, 10, 1] + [0, 500, 0, 0]
    return x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 540)


def forest():
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(10, max_depth=5, random_state=0).fit(*numbers())


def scaled():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(*numbers())


def named():
    """A forest that knows its features by name and answers with text."""
    import pandas
    from sklearn.ensemble import RandomForestClassifier

    x, y = numbers()
    frame = pandas.DataFrame(x, columns=["age", "fare", "size", "tax"])
    return RandomForestClassifier(10, max_depth=5, random_state=0).fit(frame, np.array(["low", "mid", "high"])[y])


def mixed(rows: int = 300):
    """The data frame and the labels of `columns`: numbers, some of them missing, and text."""
    import pandas

    draw = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"age": draw.normal(40, 10, rows), "fare": draw.gamma(2, 20, rows), "port": draw.choice(["S", "C", "Q"], rows)}
    )
    labels = ((frame.port == "S") | (frame.fare > 60)).astype(int)
    frame.loc[::9, "age"] = np.nan
    return frame, labels


def columns():
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    each = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "fare"]),
            ("words", OneHotEncoder(handle_unknown="ignore"), ["port"]),
        ]
    )
    return make_pipeline(each, LogisticRegression()).fit(*mixed())


def boosted():
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=5, max_depth=3).fit(*numbers())


def unfitted():
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier()
