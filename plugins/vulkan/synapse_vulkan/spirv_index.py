"""Digests of the kernels; written by ``build_spirv.py``, never by hand."""

from __future__ import annotations

#: The compiler that made them.
COMPILER = "shaderc 2023.2-1"
#: Digest of the sources they were made from.
SOURCES = "e0edbd26da5d289b8160ab91a0740f9dff96204a4102542b4eb94a54b32931ca"
#: SHA-256 of every compiled kernel.
SPIRV = {
    "activate": "a869b11098a29a669149df3d5a03464fcb276070882c27276d1420787a0e89bc",
    "argmax": "19e5536339652314853d3ef81a92893b71429ddaa668415717ca02af0bf16389",
    "attention": "6fb5d1672ceba84703d42c967b178c7e4eb77f09497aed41f28f7f6f7e8b7fbd",
    "binary": "bb111bb21eead006865906185e6b0d232dc763c99a67c117c2af4dd0b5865e98",
    "copy": "a3ba53526af3efa9899c5ac937b9eca061648d2891bdb452b5119d700e010ac4",
    "gather": "1762f181603d80b3f0b4e26ccb24dc32f6620141ebb09a81a93196d5c3405e5c",
    "gemm_direct": "553f8346ac84e348a9be1cc04b4b40f7e355f9ed0965a35e70d94cd55808baf7",
    "gemm_tiled": "fdb4083f1b4ef2a904625ec827e9c89774c1fb1ebe765e3ef7d140a8dff0d8c4",
    "mean": "ca378c39e726866bbc4230b2e4d50a2d94c8861624e080183d2dd1a09ce35b0a",
    "norm": "6609241dde530716c23b6ec39aa7b96e594d0a783488b7cda69260b03b4ed023",
    "rope": "bbc945bbe4ce39b691c7e82946c89b2269e31d5b7c7bf3408acac94fc9ae5c11",
}
