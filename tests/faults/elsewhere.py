"""Fault sites that fault_program.cc does not meet: which test makes them fail instead.

tests/structure/rules_test.py looks whether that test names them; fault_walk.py, whether every other
site was met.
"""

TESTS = {
    "tests/unit/heaps/page_size_test.cc": "map_huge move_huge",  # pages of the kernel's pool
    "tests/unit/malloc_settings_test.cc": "make_file current_folder exit_handler",
    "tests/notifiers/notifiers_test.cc": "open_library find_function import_monitor close_monitor",
    "tests/unit/regcache/quiesce_test.cc": "wait_request",  # RDMALLOC_CHECKPOINT=on
    "tests/unit/reclaim_test.cc": "barrier",  # idle threads beside a purge thread
    "tests/invariants/pressure_test.cc": "own_descriptors",  # 8 MiB free beside a purge thread
    "tests/unit/registrars/uring_test.cc": "uring_wait",
    "tests/unit/registrars/libfabric_test.cc":
        "libfabric_register libfabric_deregister registrar_probe",
    "tests/unit/registrars/ucx_test.cc": "ucx_register ucx_deregister ucx_query ucx_pack",
    "tests/unit/registrars/dpdk_test.cc": "dpdk_register dpdk_unregister dpdk_map dpdk_unmap",
    "tests/unit/registrars/spdk_test.cc": "spdk_find spdk_register spdk_unregister",
    # Where a device is: in the lab's guest.
    "tests/lab/programs/verbs_cache.cc":
        "verbs_device verbs_query verbs_pd verbs_register verbs_deregister",
}
TEST_OF = {site: test for test, sites in TESTS.items() for site in sites.split()}
