"""Engines as `vitreous bench` leaves them in the cache."""

from dataclasses import replace

from vitreous.inference.conversion import builtin_views, convert_model
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import Int8Accuracy
from vitreous.inference.engines import TORCH, Variant


def converted_to_int8(bundle, processor=None):
    """A model in int8 that `auto` trusts, as `bench` leaves it in the cache."""
    made = convert_model(bundle, "openvino", builtin_views(bundle.preprocess))
    metadata = replace(made.metadata, precision="int8", accuracy=Int8Accuracy(1000, 1000, 0, 0))
    cache = EngineCache(bundle)
    cache.put(replace(made, conversion=replace(metadata, processor=processor or metadata.processor)))
    cache.remember({TORCH: 1.0, Variant("openvino", "int8"): 1e6})
    return cache
