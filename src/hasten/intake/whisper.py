"""Whisper's three parts as OpenVINO models, made from transformers' module and held against it.

`features` turns a waveform into a log-mel spectrogram, `encoder` turns that into the keys and values that the decoder's
cross-attention looks at, once for each clip, and `decoder` adds one token after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.errors import Failed
from hasten.intake.stateful import BEAM, keep_state

HOP, WINDOW = 160, 400
"""Samples of 16 kHz from one frame to the next, and in one."""
TOLERANCE = 1e-3
"""Logits may differ from the original's by this share of their largest."""
CHECKED_TOKENS = 32


def parts(module: Any, mel_filters: Any) -> dict[str, Any]:
    """OpenVINO's models of `module`, a WhisperForConditionalGeneration, by the names of their parts."""
    import openvino as ov
    import torch

    config = module.config
    heads, size, layers = config.decoder_attention_heads, config.d_model, config.decoder_layers
    head = size // heads
    made = {}
    with torch.no_grad():
        made["features"] = ov.convert_model(_features(mel_filters), example_input=torch.randn(2, 3200))
        _name(made["features"], ["audio"], ["mel"], {"audio": [-1, -1]})

        bins = config.num_mel_bins
        made["encoder"] = ov.convert_model(_encoder(module), example_input=torch.randn(2, bins, 20))
        _name(made["encoder"], ["mel"], crossed(layers), {"mel": [-1, bins, -1]})

        past = [f"past.{kind}.{i}" for i in range(layers) for kind in ("key", "value")]
        present = [name.replace("past", "present") for name in past]
        example = (
            torch.ones(2, 3, dtype=torch.int64),
            torch.arange(5, 8),
            *(torch.randn(2, heads, 5, head) for _ in past),
            *(torch.randn(2, heads, 10, head) for _ in past),
        )
        made["decoder"] = ov.convert_model(_decoder(module), example_input=example)
        shapes = {"input_ids": [-1, -1], "position_ids": [-1]}
        shapes |= {name: [-1, heads, -1, head] for name in (*past, *crossed(layers))}
        _name(made["decoder"], [*shapes][:2] + past + crossed(layers), ["logits", *present], shapes)
        keep_state(made["decoder"], zip(past, present, strict=True))
    return made


def crossed(layers: int) -> list[str]:
    """What the encoder gives and the decoder takes."""
    return [f"cross.{kind}.{i}" for i in range(layers) for kind in ("key", "value")]


def verify(made: Mapping[str, Any], module: Any, extractor: Any, told: Mapping[str, Any]) -> None:
    """Raise `Failed` unless the parts give transformers' own logits, and its own whole greedy decoding."""
    import numpy as np
    import openvino as ov
    import torch

    audio = sound(int(extractor.n_samples))
    core, exact = ov.Core(), {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    features, encoder, decoder = (core.compile_model(made[name], "CPU", exact) for name in made)
    mel = features([audio])[0]
    theirs = extractor(list(audio[:, : extractor.n_samples // 4]), sampling_rate=16000, return_tensors="pt")
    _close("the log-mel spectrogram", mel, theirs.input_features.numpy())
    cross = dict(zip(crossed(module.config.decoder_layers), encoder([mel]).to_tuple(), strict=True))
    request, prompt = decoder.create_infer_request(), list(told["prompt"])
    rows = np.arange(len(audio), dtype=np.int32)
    texts = np.repeat(np.array([prompt]), len(audio), axis=0)
    most = min(CHECKED_TOKENS, int(told["positions"]) - len(prompt))
    logits, fed = [], texts
    for step in range(most):
        at = np.arange(texts.shape[1] - fed.shape[1], texts.shape[1])
        found = request.infer({"input_ids": fed, "position_ids": at, BEAM: rows, **cross})["logits"]
        logits.append(found.copy())
        found[:, list(told["suppress"])] = -np.inf
        if not step:
            found[:, list(told["suppress_first"])] = -np.inf
        fed = found.argmax(axis=-1)[:, None]
        texts = np.concatenate([texts, fed], axis=1)
    with torch.no_grad():
        whole = module(input_features=theirs.input_features, decoder_input_ids=torch.from_numpy(texts[:, :-1])).logits[
            :, len(prompt) - 1 :
        ]
        _close("the logits", np.stack(logits, axis=1), whole.numpy())
        wanted = module.generate(
            theirs.input_features,
            decoder_input_ids=torch.from_numpy(np.repeat(np.array([prompt]), len(audio), axis=0)),
            max_new_tokens=most,
            num_beams=1,
            do_sample=False,
            return_timestamps=False,
        ).numpy()
    end = int(told["end"])
    for ours, original in zip(texts[:, len(prompt) :], wanted, strict=True):
        chosen = _until(ours, end)
        if chosen != _until(original[len(prompt) :] if list(original[: len(prompt)]) == prompt else original, end):
            raise Failed("the converted model writes another text than the original", "report this with the model")


def sound(samples: int) -> Any:
    """Two made-up clips of a quarter of the window, silence after them: [2, samples]."""
    import numpy as np

    seconds = np.arange(samples // 4) / 16000
    draw = np.random.default_rng(0)
    tones = [np.sin(2 * np.pi * (pitch + 40 * np.sin(3 * seconds)) * seconds) for pitch in (180, 420)]
    found = np.zeros((2, samples), np.float32)
    for row, tone in enumerate(tones):
        found[row, : len(seconds)] = 0.3 * tone * (np.sin(7 * seconds) > 0) + 0.01 * draw.normal(size=len(seconds))
    return found


def _until(tokens: Sequence[int], end: int) -> list[int]:
    found = [int(token) for token in tokens]
    return found[: found.index(end)] if end in found else found


def _close(what: str, ours: Any, theirs: Any) -> None:
    import numpy as np

    off = float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), 1e-9))
    if not off < TOLERANCE:
        raise Failed(f"{what} of the converted model differ by {off:.2g} from the original's", "report this")


def _name(model: Any, inputs: Sequence[str], outputs: Sequence[str], shapes: Mapping[str, Sequence[int]]) -> None:
    for port, name in zip(model.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    model.reshape({name: list(shape) for name, shape in shapes.items()})


def _features(mel_filters: Any) -> Any:
    """Log-mel in products of matrices: three hops side by side hold a window and 80 samples that do not count."""
    import torch
    from torch.nn import functional

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            bins = WINDOW // 2 + 1
            turn = torch.outer(torch.arange(WINDOW), torch.arange(bins)).double() * (2 * torch.pi / WINDOW)
            window = torch.hann_window(WINDOW, dtype=torch.float64)[:, None]
            basis = torch.zeros(3 * HOP, 2 * bins, dtype=torch.float64)
            basis[:WINDOW] = torch.cat([window * turn.cos(), window * turn.sin()], dim=1)
            self.basis: torch.Tensor
            self.mel: torch.Tensor
            self.register_buffer("basis", basis.float())
            self.register_buffer("mel", torch.as_tensor(mel_filters).float())

        def forward(self, audio: Any) -> Any:
            around = functional.pad(audio[:, None], (WINDOW // 2, 3 * HOP - WINDOW + 40), mode="reflect")[:, 0]
            hops = around.reshape(audio.shape[0], -1, HOP)
            frames = torch.cat([hops[:, :-2], hops[:, 1:-1], hops[:, 2:]], dim=2)
            real, imaginary = torch.matmul(frames, self.basis).chunk(2, dim=2)
            power = torch.matmul(real * real + imaginary * imaginary, self.mel)
            logs = torch.log(power.clamp(min=1e-10)) * 0.4342944819032518  # to base 10
            most = logs.amax(dim=(1, 2), keepdim=True)
            return ((torch.maximum(logs, most - 8.0) + 4.0) / 4.0).transpose(1, 2)

    return Features().eval()


def _attended(block: Any, x: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """What the attention `block` of transformers gives for `x` [rows, length, width] over keys and values by heads."""
    from torch.nn import functional

    query = _by_heads(block.q_proj(x), block.num_heads)
    found = functional.scaled_dot_product_attention(query, key, value, mask)
    return block.out_proj(found.transpose(1, 2).reshape(x.shape[0], -1, block.embed_dim))


def _by_heads(x: Any, heads: int) -> Any:
    return x.reshape(x.shape[0], -1, heads, x.shape[2] // heads).transpose(1, 2)


def _fed_forward(layer: Any, x: Any) -> Any:
    return x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))


def _encoder(module: Any) -> Any:
    import torch
    from torch.nn import functional

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layers = module.model.encoder, module.model.decoder.layers

        def forward(self, mel: Any) -> Any:
            inner = self.inner
            x = functional.gelu(inner.conv2(functional.gelu(inner.conv1(mel)))).transpose(1, 2)
            x = x + inner.embed_positions.weight[: x.shape[1]]
            for layer in inner.layers:
                block, near = layer.self_attn, layer.self_attn_layer_norm(x)
                key, value = (_by_heads(made(near), block.num_heads) for made in (block.k_proj, block.v_proj))
                x = _fed_forward(layer, x + _attended(block, near, key, value))
            x = inner.layer_norm(x)
            found = []
            for layer in self.layers:
                block = layer.encoder_attn
                found += [_by_heads(made(x), block.num_heads) for made in (block.k_proj, block.v_proj)]
            return tuple(found)

    return Encoder().eval()


def _decoder(module: Any) -> Any:
    import torch

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = module.model.decoder, module.proj_out

        def forward(self, input_ids: Any, position_ids: Any, *kept: Any) -> Any:
            inner = self.inner
            layers = len(inner.layers)
            past, cross = kept[: 2 * layers], kept[2 * layers :]
            x = inner.embed_tokens(input_ids) + inner.embed_positions.weight[position_ids]
            before = torch.arange(past[0].shape[2] + input_ids.shape[1])[None, :] <= position_ids[:, None]
            before = before[None, None].expand(input_ids.shape[0], 1, -1, -1)
            present = []
            for i, layer in enumerate(inner.layers):
                block, near = layer.self_attn, layer.self_attn_layer_norm(x)
                key = torch.cat([past[2 * i], _by_heads(block.k_proj(near), block.num_heads)], dim=2)
                value = torch.cat([past[2 * i + 1], _by_heads(block.v_proj(near), block.num_heads)], dim=2)
                present += [key, value]
                x = x + _attended(block, near, key, value, before)
                near = layer.encoder_attn_layer_norm(x)
                x = x + _attended(layer.encoder_attn, near, cross[2 * i], cross[2 * i + 1])
                x = _fed_forward(layer, x)
            return (self.last(inner.layer_norm(x[:, -1])), *present)

    return Decoder().eval()
