import pytest

from vanilla_transformer.training.schedule import lr_at


@pytest.mark.parametrize(
    ("step", "d_model", "rate"),
    [
        # section 5.3, equation 3, worked by hand with warmup 4000
        (1, 512, 1.74693e-7),  # 512 ** -0.5 * 4000 ** -1.5
        (2000, 512, 3.49386e-4),  # half of the peak
        (4000, 512, 6.98771e-4),  # 512 ** -0.5 * 4000 ** -0.5
        (16000, 512, 3.49386e-4),  # four times the steps, half the rate
        (4000, 1024, 4.94106e-4),  # big
    ],
)
def test_the_schedule_is_the_papers(step, d_model, rate):
    assert lr_at(step, d_model, warmup=4000) == pytest.approx(rate, rel=1e-5)


def test_a_learning_rate_of_the_recipe_is_the_peak_of_the_same_curve():
    # 0.005 at step 2000, as in the published Multi30k setting: 0.005 * 500 / 2000 and 0.005 * (2000 / 8000) ** 0.5
    assert [lr_at(step, 128, 2000, peak=0.005) for step in (500, 2000, 8000)] == pytest.approx([0.00125, 0.005, 0.0025])


def test_the_first_update_after_the_warm_up_is_continuous():
    assert lr_at(100, 64, 100) > lr_at(101, 64, 100) > lr_at(99, 64, 100) * 0.99
