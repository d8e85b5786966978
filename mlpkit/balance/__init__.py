"""Balance: terms that are added to the task loss, and rules that move the selection bias."""

from mlpkit.balance.bias import BiasRule, BiasUpdateError, SelectionBias, update_router_bias
from mlpkit.balance.load import LoadBalance, load_hf, load_minimind
from mlpkit.balance.terms import L1, BalanceError, BalanceTerm, Entropy, ImportanceCV, ZLoss

__all__ = [
    "L1",
    "BalanceError",
    "BalanceTerm",
    "BiasRule",
    "BiasUpdateError",
    "Entropy",
    "ImportanceCV",
    "LoadBalance",
    "SelectionBias",
    "ZLoss",
    "load_hf",
    "load_minimind",
    "update_router_bias",
]
