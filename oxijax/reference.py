"""The operations of oxijax in pure JAX, for any order and mode of differentiation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # each has the type of the function that it is the twin of
    from oxijax._conv import conv as conv
    from oxijax._deform_conv import deform_conv as deform_conv
    from oxijax._gemm import gemm as gemm
    from oxijax._sampling.dcn import dcnv3 as dcnv3
    from oxijax._sampling.dcn import dcnv4 as dcnv4
    from oxijax._sampling.grid_sample import grid_sample as grid_sample
    from oxijax._sampling.map_coordinates import map_coordinates as map_coordinates
    from oxijax._sampling.ms_deform_attn import ms_deform_attn as ms_deform_attn
    from oxijax._sampling.roi_align import roi_align as roi_align
    from oxijax._sampling.sample_windows import sample_windows as sample_windows
    from oxijax._sampling.splat import splat as splat
else:
    from oxijax._conv import conv_reference as conv
    from oxijax._deform_conv import deform_conv_reference as deform_conv
    from oxijax._gemm import gemm_reference as gemm
    from oxijax._sampling.dcn import dcnv3_reference as dcnv3
    from oxijax._sampling.dcn import dcnv4_reference as dcnv4
    from oxijax._sampling.grid_sample import grid_sample_reference as grid_sample
    from oxijax._sampling.map_coordinates import map_coordinates_reference as map_coordinates
    from oxijax._sampling.ms_deform_attn import ms_deform_attn_reference as ms_deform_attn
    from oxijax._sampling.roi_align import roi_align_reference as roi_align
    from oxijax._sampling.sample_windows import sample_windows_reference as sample_windows
    from oxijax._sampling.splat import splat_reference as splat

__all__ = [
    "conv",
    "dcnv3",
    "dcnv4",
    "deform_conv",
    "gemm",
    "grid_sample",
    "map_coordinates",
    "ms_deform_attn",
    "roi_align",
    "sample_windows",
    "splat",
]
