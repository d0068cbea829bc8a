"""What fits into a budget: properties of the plan for any costs, and one plan computed by hand."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from vitreous.training.deadline import format_budget, parse_budget
from vitreous.training.image_plan import MIN_IMAGES, ImageCosts, ImageWork, describe_plan, plan_images

works = st.builds(
    ImageWork,
    features=st.one_of(st.just(0), st.integers(2, 100_000)),
    val=st.integers(0, 5_000),
    test=st.integers(0, 50_000),
    passes=st.integers(1, 6),
    min_features=st.just(2),
    step_images=st.integers(0, 1_000),
)
seconds = st.floats(1e-4, 20, allow_nan=False)
costs = st.builds(ImageCosts, spent=seconds, per_image=st.floats(1e-4, 0.5), writing=seconds, fit=st.floats(0, 0.01))
budgets = st.floats(1, 100_000)


def taken(plan, cost):
    """Seconds of everything that is planned but steps, and of val and test alone."""
    measuring = cost.per_image * (plan.work.passes * plan.val + plan.test)
    return cost.spent + cost.writing + measuring + (cost.per_image + cost.fit) * plan.features, measuring


@given(works, costs, budgets)
def test_never_more_than_the_budget_unless_the_least_is_more(work, cost, budget):
    plan = plan_images(work, cost, budget)
    total, measuring = taken(plan, cost)
    least = plan_images(work, cost, 1e-9)
    assert plan.features >= least.features
    if plan.training_seconds >= 0:
        assert total + plan.training_seconds <= budget * (1 + 1e-9)
    else:
        assert plan.features == least.features
    if plan.val > MIN_IMAGES and plan.test > MIN_IMAGES:
        assert measuring <= budget / 4 * (1 + 1e-9)


@given(works, costs, budgets)
def test_no_more_images_than_there_are_and_never_none(work, cost, budget):
    plan = plan_images(work, cost, budget)
    for count, of in ((plan.val, work.val), (plan.test, work.test), (plan.features, work.features)):
        assert min(of, 2) <= count <= of


@given(works, costs, budgets, st.floats(1, 10))
def test_more_time_looks_at_no_fewer_images(work, cost, budget, more):
    short, long = plan_images(work, cost, budget), plan_images(work, cost, budget * more)
    assert long.val >= short.val
    assert long.test >= short.test
    assert long.features >= short.features
    assert long.complete or not short.complete


@given(works, costs, budgets, st.floats(1, 10))
def test_a_slower_machine_looks_at_no_more_images(work, cost, budget, slowness):
    slow = replace(cost, per_image=cost.per_image * slowness, fit=cost.fit * slowness)
    quick, late = plan_images(work, cost, budget), plan_images(work, slow, budget)
    assert late.val <= quick.val
    assert late.test <= quick.test
    assert late.features <= quick.features


@given(works, costs)
def test_the_budget_that_would_do_it_all_does(work, cost):
    enough = plan_images(work, cost, 1.0).full_budget
    assert plan_images(work, cost, enough).complete
    assert plan_images(work, cost, enough).subsets == {}
    assume(work.features > 20 and cost.per_image * work.features > 1)
    assert not plan_images(work, cost, enough / 3).complete


def test_a_plan_computed_by_hand():
    """Of 20 s 19.4 are planned and 5.995 fixed: 13.405 are left. Of 5 for measuring, half is for 4 passes of val."""
    work = ImageWork(features=5000, val=1000, test=1000, passes=4)
    plan = plan_images(work, ImageCosts(spent=1.995, per_image=0.01, writing=4), 20)
    assert (plan.val, plan.test, plan.features) == (62, 250, 840)
    assert plan.subsets == {"val": 62, "test": 250, "train": 840}
    said = describe_plan(plan, "20s")
    assert all(text in said for text in ("20s", "840 of 5,000", "62 of 1,000", format_budget(plan.full_budget)))


def test_what_one_split_does_not_need_goes_to_the_other():
    cost = ImageCosts(spent=0, per_image=0.01, writing=0)
    assert plan_images(ImageWork(0, 10, 1000, 1), cost, 20).test == 490
    assert plan_images(ImageWork(0, 1000, 10, 1), cost, 20).val == 490
    assert plan_images(ImageWork(0, 1000, 0, 2), cost, 20).val == 250


def test_a_time_that_is_too_short_for_anything_is_said():
    plan = plan_images(ImageWork(5000, 1000, 1000, 4, min_features=37), ImageCosts(5, 0.1, 5), 1)
    assert (plan.val, plan.test, plan.features) == (MIN_IMAGES, MIN_IMAGES, 37)
    assert "1s" in describe_plan(plan, "1s")


def test_budgets_are_said_as_they_are_written(subtests):
    for seconds, text in ((21, "25s"), (90, "90s"), (121, "3m"), (3540, "59m"), (3541, "1h"), (4000, "1h10m")):
        with subtests.test(seconds=seconds, text=text):
            assert format_budget(seconds) == text
            assert parse_budget(text) >= seconds
