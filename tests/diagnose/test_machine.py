import json
from pathlib import Path

import pytest

from hasten.device import Device
from hasten.diagnose import device as device_module
from hasten.diagnose import hardware
from hasten.diagnose.device import best_of, better, device, limits_of, machine
from hasten.diagnose.notes import Surroundings, notes, waiting
from hasten.diagnose.quota import Quota, quota
from hasten.errors import InvalidInput
from hasten.measurement import Figure


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_quota_of_version_2_is_found_in_a_group_above(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/b/memory.max": "1073741824\n",
        },
    )
    assert quota(root) == Quota(1.5, 1 << 30)


def test_a_quota_of_version_1_is_found_where_the_hosts_path_does_not_exist_inside(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912",
        },
    )
    assert quota(root) == Quota(2.0, 1 << 29)


@pytest.mark.parametrize("text", ["-1", "", "nonsense"])
def test_no_quota_is_no_quota(tmp_path, text):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": text,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert quota(root) == Quota()
    assert quota(tmp_path / "nothing") == Quota()


def test_a_quota_takes_whole_cores_before_second_threads():
    pairs = {0: (0, 4), 1: (1, 5), 4: (0, 4), 5: (1, 5)}
    assert hardware.spread((0, 1, 4, 5), 2, pairs) == (0, 1)
    assert hardware.spread((0, 1, 4, 5), 3, pairs) == (0, 1, 4)
    assert hardware.spread((0,), 0, {}) == (0,)


def test_the_machine_is_read_from_the_kernels_files(tmp_path):
    cache = "sys/devices/system/cpu/cpu0/cache"
    root = write(
        tmp_path,
        {
            "proc/cpuinfo": "model name\t: Some  CPU @ 2GHz\nflags\t\t: fpu avx2 avx512_vnni amx_bf16\n",
            f"{cache}/index0/level": "1",
            f"{cache}/index0/type": "Data",
            f"{cache}/index0/size": "32K",
            f"{cache}/index3/level": "3",
            f"{cache}/index3/type": "Unified",
            f"{cache}/index3/size": "32M",
            "proc/meminfo": "MemTotal:       1024 kB\n",
        },
    )
    assert hardware.processor(root) == "Some CPU @ 2GHz"
    assert hardware.flags(root) == ("avx2", "avx512_vnni", "amx_bf16")
    assert hardware.caches(0, root) == {"L1d": 32 << 10, "L3": 32 << 20}
    assert hardware.memory_bytes(root) == 1 << 20


def test_arm_features_have_common_names(tmp_path):
    root = write(tmp_path, {"proc/cpuinfo": "processor: 0\nFeatures: fp asimd asimddp bf16 i8mm\n"})
    assert hardware.flags(root) == ("neon", "dotprod", "bf16", "i8mm")
    assert hardware.processor(root)


def test_this_machine_is_described_without_measuring():
    found = machine()
    assert found.name
    assert found.cpus
    assert found.memory_bytes > 0
    assert not found.limits


def test_cores_that_may_not_be_used_are_refused():
    with pytest.raises(InvalidInput, match="9999"):
        machine((9999,))


def test_the_best_runtime_counts_and_is_named():
    seen = {
        "onnxruntime": {"rates": {"fp32": {"size": 1024, "values": [9.0] * 8}}, "dispatch_us": [5.0, 6.0]},
        "openvino": {
            "rates": {
                "fp32": {"size": 1024, "values": [10.0] * 8},
                "bf16": {"size": 2048, "values": [20.0, 1.0]},
            },
            "dispatch_us": [7.0],
        },
    }
    found = limits_of(seen, {"read": [3.0] * 8, "copy": []}, 2)
    assert found["gemm_fp32_gflops"].value == 10.0
    assert found["gemm_fp32_gflops"].source.startswith("measured: OpenVINO MatMul 1024^3 fp32, 2 threads")
    assert found["gemm_bf16_gflops"].value == 20.0
    assert "gemm_int8_gops" not in found
    assert found["dispatch_us"].value == 5.0
    assert found["read_gb_s"].unit == "GB/s"
    assert "copy_gb_s" not in found


def test_a_burst_of_other_work_does_not_lower_the_roof():
    quiet = [100.0, 101.0, 99.0] * 8
    assert best_of(quiet + [30.0] * 8)[0] == best_of(quiet)[0] == 101.0


def test_limits_are_measured_once_and_kept(tmp_path, monkeypatch):
    calls = []

    def measure(bare, quick, on_progress):
        calls.append(quick)
        return {"read_gb_s": Figure(float(len(calls)), "GB/s", "measured")}

    monkeypatch.setattr(device_module, "measure", measure)
    first = device(cache=tmp_path)
    assert device(cache=tmp_path) == first
    assert device(cache=tmp_path, quick=True) == first
    assert len(calls) == 1
    assert device(cache=tmp_path, refresh=True).limits["read_gb_s"].value == 2.0
    (kept,) = tmp_path.glob("device-*.json")
    assert Device.from_json(json.loads(kept.read_text())).limits["read_gb_s"].value == 2.0
    kept.write_text("{broken")
    assert device(cache=tmp_path).limits["read_gb_s"].value == 3.0


def test_limits_from_a_busy_machine_are_measured_again_later_and_the_better_is_kept(tmp_path, monkeypatch):
    rates = [Figure(100.0, "GFLOP/s", "measured", (40.0, 100.0)), Figure(90.0, "GFLOP/s", "measured", (89.0, 90.0))]
    monkeypatch.setattr(device_module, "measure", lambda *_: {"gemm_fp32_gflops": rates[len(seen)]})
    seen: list[Device] = []
    seen.append(device(cache=tmp_path))
    monkeypatch.setattr(device_module, "HOUR_S", -1.0)
    assert device(cache=tmp_path).limits["gemm_fp32_gflops"].value == 100.0


def test_better_knows_rates_from_costs():
    one = {"read_gb_s": Figure(2.0, "", ""), "dispatch_us": Figure(2.0, "", "")}
    other = {"read_gb_s": Figure(1.0, "", ""), "dispatch_us": Figure(1.0, "", "")}
    assert {name: figure.value for name, figure in better(one, other).items()} == {"read_gb_s": 2.0, "dispatch_us": 1.0}


def test_pressure_is_read_from_the_kernel():
    assert waiting("some avg10=12.50 avg60=1.0 avg300=0.0 total=1\n") == 0.125
    assert waiting("") is None


LIMITS = {
    "gemm_fp32_gflops": Figure(100.0, "GFLOP/s", "measured", (99.0, 100.0)),
    "gemm_bf16_gflops": Figure(105.0, "GFLOP/s", "measured", (104.0, 105.0)),
}


def test_a_quiet_machine_that_keeps_its_promises_gets_no_notes():
    assert notes(Device("x", cpus=(0, 1), limits=LIMITS), Surroundings(2)) == ()


def test_notes_name_what_will_spoil_figures():
    surroundings = Surroundings(
        8, Quota(2.0, 1 << 30), 0.3, 0.1, [(0, 4)], "powersave", {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "200"}
    )
    said = " ".join(notes(Device("x", cpus=(0, 1), flags=("amx_bf16", "avx512_vnni"), limits=LIMITS), surroundings))
    for words in (
        "30% of the time was lost",
        "pays for 2 of 8 cores",
        "1 GiB of memory",
        "one physical core (0, 4)",
        "powersave",
        "OMP_WAIT_POLICY",
        "KMP_BLOCKTIME=200",
        "bf16 measures only 1.1x fp32",
        "no installed runtime computes in int8",
    ):
        assert words in said, words


def test_a_gpu_makes_another_device_of_the_same_processor(tmp_path: Path) -> None:
    bare = Device("x", cpus=(0,))
    with_gpu = Device("x", cpus=(0,), accelerators=("NVIDIA H200",))
    assert bare.fingerprint != with_gpu.fingerprint
    assert Device.from_json(with_gpu.to_json()) == with_gpu
    older = {key: value for key, value in bare.to_json().items() if key != "accelerators"}
    assert Device.from_json(older) == bare
