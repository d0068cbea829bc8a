import os
import pickle

import numpy as np
from pictures import noise

from vitreous.data.cache import DEFAULT_LIMIT, PictureCache, default_limit


def test_what_is_put_comes_back_until_it_is_full():
    cache = PictureCache(4, 8 * 8 * 3 * 2 + 10)
    assert cache.get(0) is None
    cache.put(0, noise(8, 8, seed=0))
    cache.put(3, noise(8, 8, seed=3))
    cache.put(1, noise(8, 8, seed=1))  # no room
    cache.put(0, noise(8, 8, seed=9))  # already there
    np.testing.assert_array_equal(cache.get(0), noise(8, 8, seed=0))
    np.testing.assert_array_equal(cache.get(3), noise(8, 8, seed=3))
    assert cache.get(1) is None
    assert cache.get(2) is None
    assert cache.used == 384


def test_forked_processes_share_it():
    cache = PictureCache(2, 10_000)
    child = os.fork()
    if child == 0:
        cache.put(1, noise(5, 7, seed=1))
        os._exit(0)
    os.waitpid(child, 0)
    np.testing.assert_array_equal(cache.get(1), noise(5, 7, seed=1))


def test_without_memory_or_in_a_fresh_process_it_is_empty():
    cache = PictureCache(2, 0)
    cache.put(0, noise(4, 4))
    assert cache.get(0) is None
    full = PictureCache(2, 1000)
    full.put(0, noise(4, 4))
    assert pickle.loads(pickle.dumps(full)).get(0) is None
    assert 0 < default_limit() <= DEFAULT_LIMIT
