# How tests are registered. Every one goes through tests/support/with_stacks, so that a hang ends
# with the stacks of all threads of all its processes and not with a bare "Timeout"; every one has a
# limit; none can read standard input. Exit status 77 means "skipped", after a line saying why.
#
#   rdmalloc_test(NAME preload.ls COMMAND prog args... [PRELOAD] [ENVIRONMENT VAR=value...]
#                 [TIMEOUT seconds] [LABELS quick|full|lab...] [VARIANTS release checked...]
#                 [SERIAL] [LOCK name] [PROCESSORS n] [COST n] [DEPENDS target...])
#   rdmalloc_gtest(name source... [LIBRARIES target...] [TIMEOUT s] [LABELS ...] [VARIANTS ...]
#                 [SERIAL] [LOCK name] [PROCESSORS n] [COST n])
#
# Labels decide when a test runs: `quick` also in `./test --quick` (the inner loop, minutes in all),
# `full` only in `./test --full` (hours); with neither it runs in `./test`. `lab`: boots the lab.
# PRELOAD runs the command, not the wrapper, with LD_PRELOAD=librdmalloc.so.
# VARIANTS are the builds the test is part of (see below): a program under test that needs
# librdmalloc.so is for `release` (the default) and perhaps `checked`; unit tests are for all.
# SERIAL: nothing else runs meanwhile (needed by whatever compares times). LOCK: not together with
# other tests that take the same lock. COST: what costs more begins earlier (rdmalloc_cost() has the numbers).

find_package(GTest REQUIRED)
find_package(Threads REQUIRED)
# Debian's own interpreter first: a version manager's shim costs 50 ms at each start.
find_program(RDMALLOC_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(RDMALLOC_PYTHON python3 REQUIRED)

# Which of our presets this build is alike; names of tests say it, so that `./test` can show the
# tests of all builds in one list.
if(RDMALLOC_SANITIZE MATCHES address)
  set(RDMALLOC_VARIANT asan)
elseif(RDMALLOC_SANITIZE MATCHES thread)
  set(RDMALLOC_VARIANT tsan)
elseif(RDMALLOC_SANITIZE)
  set(RDMALLOC_VARIANT ubsan)
elseif(RDMALLOC_CHECKED)
  set(RDMALLOC_VARIANT checked)
elseif(CMAKE_BUILD_TYPE STREQUAL Debug)
  set(RDMALLOC_VARIANT debug)
else()
  set(RDMALLOC_VARIANT release)
endif()
if(RDMALLOC_VARIANT STREQUAL release)
  set(RDMALLOC_TEST_PREFIX "")
else()
  set(RDMALLOC_TEST_PREFIX "${RDMALLOC_VARIANT}:")
endif()

# What starts each test: with_stacks.c, which leaves to with_stacks.py those that do more than end (without
# the site's modules and what the environment says of Python), or that one alone. Made while configuring,
# so that it is there whichever target was built, and has no sanitizer in it.
function(rdmalloc_make_wrapper)
  set(source ${PROJECT_SOURCE_DIR}/tests/support/with_stacks)
  set(wrapper ${PROJECT_BINARY_DIR}/tests/with_stacks)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source}.c)
  if(NOT CMAKE_CROSSCOMPILING AND ${source}.c IS_NEWER_THAN ${wrapper})
    file(REMOVE ${wrapper})
    unset(RDMALLOC_WITH_STACKS_BUILT CACHE)
    try_compile(RDMALLOC_WITH_STACKS_BUILT ${wrapper}_build ${source}.c COPY_FILE ${wrapper}
      OUTPUT_VARIABLE told)
    if(NOT RDMALLOC_WITH_STACKS_BUILT)
      message(STATUS "tests: start by with_stacks.py, with_stacks.c is not for this machine:\n${told}")
    endif()
  endif()
  if(EXISTS ${wrapper})
    set(RDMALLOC_WITH_STACKS ${wrapper} ${RDMALLOC_PYTHON} ${source}.py PARENT_SCOPE)
  else()
    set(RDMALLOC_WITH_STACKS ${RDMALLOC_PYTHON} -I -S ${source}.py PARENT_SCOPE)
  endif()
endfunction()
rdmalloc_make_wrapper()
set(RDMALLOC_STACKS_SECONDS 60)  # what with_stacks may take for the stacks, beyond the limit
set(RDMALLOC_DEFAULT_TIMEOUT 60)

# A sanitizer's finding must end the test, with both stacks. By default TSan sleeps a second at the
# end of each process that still has threads, to see what they do then: 50 ms are as good as 1000 here,
# where several hundred processes end.
set(RDMALLOC_SANITIZER_ENVIRONMENT
  "ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1"
  "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=50:suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan_suppressions.txt")

# Sets `result` to whether a test of these VARIANTS belongs to this build.
function(rdmalloc_test_wanted variants default result)
  if(NOT variants)
    set(variants ${default})
  endif()
  if("${RDMALLOC_VARIANT}" IN_LIST variants OR "all" IN_LIST variants)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# When a test begins, by its arguments (arg_*), where no earlier run has told what it takes:
#
#   3000  the lab's, which are longest
#   2000  long ones with two processors
#   1500  others with two processors
#   1200  those that may take long, by their limit
#   1000  those that wait for each other
#
# The rest are short and fill up what is left at the end. Those with two processors come before all that
# need one: while there are such, two processors are never free at the same time but where another of those
# or a guest has ended, and what needs two would come last of all, alone.
function(rdmalloc_cost result)
  set(cost 0)
  if(arg_LOCK STREQUAL lab)
    set(cost 3000)
  elseif(arg_COST)
    set(cost ${arg_COST})
  elseif(arg_PROCESSORS)
    set(cost 1500)
  elseif(arg_TIMEOUT GREATER_EQUAL 240)
    set(cost 1200)
  elseif(arg_LOCK)
    set(cost 1000)
  endif()
  set(${result} ${cost} PARENT_SCOPE)
endfunction()

function(rdmalloc_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "PRELOAD;SERIAL" "NAME;TIMEOUT;LOCK;PROCESSORS;COST"
    "COMMAND;LABELS;VARIANTS;ENVIRONMENT;DEPENDS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_COMMAND)
    message(FATAL_ERROR "rdmalloc_test(${ARGV}): NAME and COMMAND are needed, and '"
      "${arg_UNPARSED_ARGUMENTS}' is not understood; cmake/testing.cmake lists what is")
  endif()
  rdmalloc_test_wanted("${arg_VARIANTS}" "release" wanted)
  # A sanitizer's build has no librdmalloc.so to preload.
  if(NOT wanted OR (arg_PRELOAD AND NOT TARGET rdmalloc))
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT ${RDMALLOC_DEFAULT_TIMEOUT})
  endif()
  # Through env(1) and not through ctest's ENVIRONMENT: the wrapper and gdb run without it.
  set(environment ${RDMALLOC_SANITIZER_ENVIRONMENT} ${arg_ENVIRONMENT})
  if(arg_PRELOAD)
    list(APPEND environment "LD_PRELOAD=$<TARGET_FILE:rdmalloc>")
  endif()
  # A target's name as the program means its file, as with add_test().
  list(POP_FRONT arg_COMMAND program)
  if(TARGET ${program})
    get_target_property(is_left_out ${program} EXCLUDE_FROM_ALL)
    if(is_left_out)
      return()
    endif()
    set(program $<TARGET_FILE:${program}>)
  endif()
  # A guest's two processors spin for each other: where one has to share ours they take half as much again. So
  # a guest comes before what runs beside it, as far as this user may have that; nice(1) goes on without.
  set(priority "")
  if(arg_LOCK STREQUAL lab)
    set(priority nice -n -10)
  endif()
  set(name ${RDMALLOC_TEST_PREFIX}${arg_NAME})
  add_test(NAME ${name}
    COMMAND ${RDMALLOC_WITH_STACKS} ${arg_TIMEOUT} ${priority} env ${environment} ${program} ${arg_COMMAND})
  math(EXPR limit "${arg_TIMEOUT} + ${RDMALLOC_STACKS_SECONDS}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${limit} SKIP_RETURN_CODE 77
    LABELS "${arg_LABELS}" RUN_SERIAL "${arg_SERIAL}")
  rdmalloc_cost(cost)
  set_tests_properties(${name} PROPERTIES COST ${cost})
  if(arg_LOCK)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK "${arg_LOCK}")
  endif()
  # ./test begins two tests more than there are processors: on two, two beside a guest.
  if(arg_LOCK STREQUAL lab)
    set(arg_PROCESSORS 2)
  endif()
  if(arg_PROCESSORS)
    set_tests_properties(${name} PROPERTIES PROCESSORS "${arg_PROCESSORS}")
  endif()
endfunction()

# A GoogleTest program over the prefixed library. Each of its tests is a ctest test of its own, so
# TIMEOUT is that of one test.
include(GoogleTest)
function(rdmalloc_gtest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "TIMEOUT;LOCK;PROCESSORS;COST"
    "LABELS;VARIANTS;LIBRARIES")
  rdmalloc_test_wanted("${arg_VARIANTS}" "all" wanted)
  if(NOT wanted)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT ${RDMALLOC_DEFAULT_TIMEOUT})
  endif()
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} rdmalloc_prefixed GTest::gmock
    GTest::gtest_main Threads::Threads)
  rdmalloc_precompiled(rdmalloc_test_headers ${name})
  target_compile_definitions(${name} PRIVATE $<$<BOOL:${RDMALLOC_CHECKED}>:RDMALLOC_CHECKED=1>)
  # The emulator of a target is put before its command: our way to the wrapper, and to env(1), since
  # gtest_discover_tests() would take all but the first of a list of variables for other properties.
  set_target_properties(${name} PROPERTIES CROSSCOMPILING_EMULATOR
    "${RDMALLOC_WITH_STACKS};${arg_TIMEOUT};env;${RDMALLOC_SANITIZER_ENVIRONMENT}")
  math(EXPR limit "${arg_TIMEOUT} + ${RDMALLOC_STACKS_SECONDS}")
  rdmalloc_cost(cost)
  set(properties TIMEOUT ${limit} SKIP_RETURN_CODE 77 RUN_SERIAL "${arg_SERIAL}" COST ${cost})
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  if(arg_LOCK)
    list(APPEND properties RESOURCE_LOCK "${arg_LOCK}")
  endif()
  if(arg_PROCESSORS)
    list(APPEND properties PROCESSORS "${arg_PROCESSORS}")
  endif()
  # At test time: a broken allocator must fail a test, not the build.
  gtest_discover_tests(${name} TEST_PREFIX "${RDMALLOC_TEST_PREFIX}${name}." DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()
