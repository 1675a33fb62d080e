"""Clean estimates: Tweedie's formula, the ODE, and how often the network is asked."""

import pytest
import torch

from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.core.tweedie import clean_estimate, clean_picture, noise_estimate, substep_counts


class Network:
    """A velocity that depends on state, time and row, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[float], list[int]]] = []

    def __call__(self, x: torch.Tensor, t: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.asked.append((t.tolist(), rows.tolist()))
        over = lambda value: value.reshape(-1, *[1] * (x.dim() - 1)).to(x)
        return torch.sin(2 * x) + over(t) ** 2 + 0.1 * over(rows) * x

    @property
    def evaluations(self) -> int:
        return sum(len(rows) for _, rows in self.asked)


def states(rows: int = 5) -> torch.Tensor:
    return torch.randn(rows, 2, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_clean_and_noise_estimate_put_the_state_together_again():
    x, v = states(), torch.cos(states())
    t = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.01], dtype=torch.float64)
    clean, noise = clean_estimate(x, v, t), noise_estimate(x, v, t)
    over = t.reshape(5, 1, 1)
    torch.testing.assert_close((1 - over) * clean + over * noise, x, rtol=0, atol=1e-14)
    torch.testing.assert_close(noise - clean, v, rtol=0, atol=1e-14)


def test_one_substep_is_tweedie_exactly_and_asks_no_network():
    x, t = states(), torch.tensor([1.0, 0.8, 0.5, 0.2, 0.01], dtype=torch.float64)
    network, v = Network(), torch.cos(x)
    picture = clean_picture(network, x, v, t, torch.ones(5, dtype=torch.long))
    assert torch.equal(picture, clean_estimate(x, v, t))
    assert network.asked == []


@pytest.mark.parametrize("spacing", [1.0, 3.0])
def test_k_substeps_from_t_1_are_the_ode_on_a_training_grid_of_the_same_shift(spacing):
    u = [1 - k / 6 for k in range(7)]
    schedule = Schedule(tuple(spacing * value / (1 + (spacing - 1) * value) for value in u), "ddim", 0.7)
    x = start = states()
    for k in range(schedule.steps):
        x = schedule.ode_step(x, Network()(x, torch.full((5,), schedule.times[k], dtype=torch.float64), torch.arange(5)), k)
    ones = torch.ones(5, dtype=torch.float64)
    first = Network()(start, ones, torch.arange(5))
    picture = clean_picture(Network(), start, first, ones, torch.full((5,), 6), spacing)
    torch.testing.assert_close(picture, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spacing", [1.0, 3.0])
def test_rows_with_times_and_substeps_of_their_own_equal_separate_calls(spacing):
    x, t, counts = states(), torch.tensor([1.0, 0.8, 0.5, 0.2, 0.01], dtype=torch.float64), torch.tensor([4, 3, 1, 2, 4])
    v = Network()(x, t, torch.arange(5))
    together = clean_picture(Network(), x, v, t, counts, spacing)
    for i in range(5):
        row = slice(i, i + 1)
        own = lambda x, t, rows, i=i: Network()(x, t, rows + i)
        alone = clean_picture(own, x[row], v[row], t[row], counts[row], spacing)
        torch.testing.assert_close(together[row], alone, rtol=0, atol=1e-14)


def test_the_given_velocity_is_the_first_substep():
    x, t = states(), torch.full((5,), 0.8, dtype=torch.float64)
    network, v = Network(), torch.cos(x)
    picture = clean_picture(network, x, v, t, torch.full((5,), 2))
    half = x - 0.4 * v
    expected = half - 0.4 * Network()(half, t / 2, torch.arange(5))
    torch.testing.assert_close(picture, expected, rtol=0, atol=1e-14)
    assert network.asked == [([0.4] * 5, [0, 1, 2, 3, 4])]


def test_the_network_is_asked_once_less_than_there_are_substeps_and_only_for_rows_that_need_it():
    network, x = Network(), states()
    clean_picture(network, x, torch.zeros_like(x), torch.full((5,), 0.5, dtype=torch.float64), torch.tensor([1, 3, 2, 1, 3]))
    assert [rows for _, rows in network.asked] == [[1, 2, 4], [1, 4]]
    assert network.evaluations == 5


def test_the_states_that_go_in_are_not_changed():
    x = states()
    before = x.clone()
    clean_picture(Network(), x, torch.ones_like(x), torch.full((5,), 0.5, dtype=torch.float64), torch.full((5,), 3))
    assert torch.equal(x, before)


def test_substeps_are_the_same_for_all_times_or_fewer_where_little_noise_is_left():
    t = torch.tensor([1.0, 0.81, 0.8, 0.41, 0.2, 0.01])
    assert substep_counts(t, 5, by_time=False).tolist() == [5] * 6
    assert substep_counts(t, 5, by_time=True).tolist() == [5, 5, 4, 3, 1, 1]
    assert substep_counts(t, 1, by_time=True).tolist() == [1] * 6
    with pytest.raises(ValueError, match="substeps must be at least 1; got 0"):
        substep_counts(t, 0, by_time=False)


def test_spacing_3_takes_the_times_of_method_section_7():
    """t_j = t * 3u / (1 + 2u), u = 1 - j/3."""
    network, x = Network(), states(1)
    clean_picture(network, x, torch.zeros_like(x), torch.tensor([0.9], dtype=torch.float64), torch.tensor([3]), spacing=3.0)
    u = [2 / 3, 1 / 3]
    assert [times[0] for times, _ in network.asked] == pytest.approx([0.9 * 3 * value / (1 + 2 * value) for value in u])


def test_one_time_for_many_rows_is_refused():
    x = states()
    with pytest.raises(ValueError, match=r"t needs shape \(5,\)"):
        clean_picture(Network(), x, x, torch.tensor([0.5]), torch.full((5,), 2))


def test_the_exact_velocity_of_one_picture_is_seen_through_from_any_state():
    """Point-mass data: every number of substeps from every time gives that picture."""
    picture = torch.full((2, 3), 0.25, dtype=torch.float64)
    exact = lambda x, t, rows: (x - picture) / t.reshape(-1, 1, 1)
    x, t = states(), torch.tensor([1.0, 0.8, 0.5, 0.2, 0.01], dtype=torch.float64)
    found = clean_picture(exact, x, exact(x, t, None), t, torch.tensor([1, 2, 3, 4, 5]), spacing=2.0)
    torch.testing.assert_close(found, picture.expand(5, 2, 3), rtol=0, atol=1e-12)
