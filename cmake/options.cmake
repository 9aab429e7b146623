# What a build can be asked for; the presets in CMakePresets.json set them.
option(RDMALLOC_CHECKED "Check invariants at run time and abort at a violation" OFF)
option(RDMALLOC_BUILD_TOOLS "Build the command-line tools" ON)
option(RDMALLOC_BUILD_BENCH "Build the benchmarks (MPI and the peers are used when installed)" ON)
set(RDMALLOC_SANITIZE "" CACHE STRING "address, thread or undefined: builds override nothing then")

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wno-unused-parameter)
if(RDMALLOC_SANITIZE)
  # Stacks need functions and lines, which -g1 has. With checks of UBSan too, -O2 takes twice as long.
  add_compile_options(-fsanitize=${RDMALLOC_SANITIZE} -fno-omit-frame-pointer -g1)
  if(RDMALLOC_SANITIZE MATCHES undefined)
    add_compile_options(-O1)
  endif()
  add_link_options(-fsanitize=${RDMALLOC_SANITIZE})
endif()

# How everything that runs inside malloc is compiled: no exceptions, no RTTI, no guard variables,
# hidden symbols, initial-exec TLS, and no built-in knowledge of malloc, which would let the
# compiler turn our own calloc into a call of calloc.
add_library(rdmalloc_inside_malloc INTERFACE)
target_compile_options(rdmalloc_inside_malloc INTERFACE
  -fno-exceptions $<$<COMPILE_LANGUAGE:CXX>:-fno-rtti -fno-threadsafe-statics>
  -fvisibility=hidden -ftls-model=initial-exec -fno-plt -fno-semantic-interposition
  -fno-builtin-malloc -fno-builtin-calloc -fno-builtin-realloc -fno-builtin-free)
# The fast paths are four jumps in seventy bytes. Where one of them, with the compare before it, crosses
# a line of 64 bytes, an AMD EPYC takes 6 to 9 % longer for the program sh6, and whether one does goes by
# how long the functions before it are; Intel's decode those anew that cross or end at 32 bytes (erratum
# SKX102, "Mitigations for Jump Conditional Code Erratum", Intel 2019). The assembler can keep jumps from
# both; tests/golden/golden.py looks whether it does.
include(CheckCXXCompilerFlag)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(pads_jumps -mbranches-within-32B-boundaries)
  check_cxx_compiler_flag(${pads_jumps} RDMALLOC_COMPILER_PADS_JUMPS)  # Clang's assembler is its own
  if(NOT RDMALLOC_COMPILER_PADS_JUMPS)
    string(PREPEND pads_jumps -Wa,)
    check_cxx_compiler_flag(${pads_jumps} RDMALLOC_ASSEMBLER_PADS_JUMPS)
  endif()
endif()
if(RDMALLOC_COMPILER_PADS_JUMPS OR RDMALLOC_ASSEMBLER_PADS_JUMPS)
  set(RDMALLOC_PADS_JUMPS ${pads_jumps})
endif()
target_compile_definitions(rdmalloc_inside_malloc INTERFACE RDMALLOC_INSIDE
  $<$<BOOL:${RDMALLOC_CHECKED}>:RDMALLOC_CHECKED=1>)
target_include_directories(rdmalloc_inside_malloc INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(rdmalloc_inside_malloc INTERFACE rdmalloc_headers)
