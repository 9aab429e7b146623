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
target_compile_definitions(rdmalloc_inside_malloc INTERFACE
  $<$<BOOL:${RDMALLOC_CHECKED}>:RDMALLOC_CHECKED=1>)
target_include_directories(rdmalloc_inside_malloc INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(rdmalloc_inside_malloc INTERFACE rdmalloc_headers)
