# /// script
# dependencies = ["vk-captcha==2.0", "vk_api", "pillow"]
# ///
"""vk-captcha: reads the captchas of a social network."""

from pictures import encoded, page
from vk_captcha import VkCaptchaSolver


def make():
    return VkCaptchaSolver()


def use(solver):
    pictures = [page(text, size=36, margin=8) for text in ("zsh2q", "dv78x", "ea4knm")]
    return [solver.solve(bytes_data=encoded(p.resize((130, 50)))) for p in pictures]
