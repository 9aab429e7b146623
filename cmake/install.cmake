# `cmake --install build/release [--prefix DIR]`: libraries, headers, tools, man pages, and what
# find_package(rdmalloc) and pkg-config need. The registrars' libraries, every library that
# regcache/registrars/CMakeLists.txt makes, are each a CMake component and a pkg-config file of their
# own, so that no program links what it does not use.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rdmalloc)

set(targets rdmalloc_headers rdmalloc_prefixed)
set_target_properties(rdmalloc_headers PROPERTIES EXPORT_NAME headers)
set_target_properties(rdmalloc_prefixed PROPERTIES EXPORT_NAME prefixed)
if(TARGET rdmalloc)
  list(APPEND targets rdmalloc rdmalloc_static)
  set_target_properties(rdmalloc_static PROPERTIES EXPORT_NAME static)
endif()
set(registrars "")
get_property(made DIRECTORY regcache/registrars PROPERTY BUILDSYSTEM_TARGETS)
foreach(target ${made})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL SHARED_LIBRARY)
    list(APPEND registrars ${target})
  endif()
endforeach()
install(TARGETS ${targets} ${registrars} EXPORT rdmallocTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT rdmallocTargets NAMESPACE rdmalloc:: DESTINATION ${package_dir})
install(DIRECTORY include/rdmalloc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

configure_package_config_file(cmake/rdmallocConfig.cmake.in
  ${PROJECT_BINARY_DIR}/rdmallocConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rdmallocConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rdmallocConfig.cmake
  ${PROJECT_BINARY_DIR}/rdmallocConfigVersion.cmake DESTINATION ${package_dir})

# One .pc file: NAME, what it is, its flags to link with, and those for its archive (pkg-config --static).
file(RELATIVE_PATH PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
function(rdmalloc_pkg_config name description libraries private requires)
  set(PC_NAME ${name})
  set(PC_DESCRIPTION ${description})
  set(PC_LIBRARIES ${libraries})
  set(PC_PRIVATE ${private})
  set(PC_REQUIRES ${requires})
  configure_file(cmake/rdmalloc.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
rdmalloc_pkg_config(rdmalloc "${PROJECT_DESCRIPTION}" "-lrdmalloc" "-Wl,-u,malloc -pthread -ldl" "")
foreach(registrar ${registrars})
  rdmalloc_pkg_config(${registrar} "Registrar for rdmalloc: ${registrar}" "-l${registrar}" "" rdmalloc)
endforeach()

file(GLOB man_pages CONFIGURE_DEPENDS docs/man/*.[1-9])
foreach(page ${man_pages})
  string(REGEX MATCH "[1-9]$" section ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
