# What `cmake --install` puts where: programs in bin/, the layers' static libraries in lib/, their
# headers under include/artesian/ (so that "tiering/tier_store.h" is found and clashes with nobody's),
# and a CMake package whose components are the layers:
#
#   find_package(artesian COMPONENTS tiering)            needs no LibTorch
#   target_link_libraries(mine PRIVATE artesian::tiering)
include(CMakePackageConfigHelpers)
set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/artesian)

add_custom_target(installed)  # builds what `cmake --install` copies, and no tests

# artesian_component(name [targets...]): the folder's headers, and its libraries as one export set.
function(artesian_component name)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${name}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/artesian
    FILES_MATCHING PATTERN "*.h" PATTERN "cuda*" EXCLUDE PATTERN "*_inl.h" EXCLUDE)
  foreach(target ${ARGN})
    set_target_properties(artesian_${target} PROPERTIES EXPORT_NAME ${target})
    install(TARGETS artesian_${target} EXPORT artesian-${name}
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    add_dependencies(installed artesian_${target})
  endforeach()
  install(EXPORT artesian-${name} NAMESPACE artesian:: DESTINATION ${package_directory}
    FILE artesian-${name}-targets.cmake)
endfunction()

artesian_component(base base)
artesian_component(aio aio)
artesian_component(comm comm)
artesian_component(pinned pinned)
artesian_component(kernels kernels)
artesian_component(tiering tiering)
if(ARTESIAN_TORCH AND TARGET artesian_tiering_cuda)  # for zero3, whose targets name them
  foreach(target kernels_cuda tiering_cuda)
    set_target_properties(artesian_${target} PROPERTIES EXPORT_NAME ${target})
    install(TARGETS artesian_${target} EXPORT artesian-cuda
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    add_dependencies(installed artesian_${target})
  endforeach()
  install(EXPORT artesian-cuda NAMESPACE artesian:: DESTINATION ${package_directory}
    FILE artesian-cuda-targets.cmake)
endif()
if(ARTESIAN_TORCH)
  artesian_component(zero3 zero3_config zero3_plan zero3_step zero3)
  artesian_component(models checkpoint models)
endif()

write_basic_package_version_file(${CMAKE_BINARY_DIR}/artesian-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
if(ARTESIAN_TORCH)
  file(WRITE ${CMAKE_BINARY_DIR}/built_with.cmake
    "set(artesian_built_with_torch \"${ARTESIAN_TORCH_DIR}\")\n")
  install(FILES ${CMAKE_BINARY_DIR}/built_with.cmake DESTINATION ${package_directory})
endif()
install(FILES cmake/artesian-config.cmake cmake/libraries.cmake cmake/torch.cmake
  ${CMAKE_BINARY_DIR}/artesian-config-version.cmake DESTINATION ${package_directory})

add_dependencies(installed aio_bench)
install(TARGETS aio_bench DESTINATION ${CMAKE_INSTALL_BINDIR})
if(ARTESIAN_TORCH)
  # Torch's folder is where it was when we were built.
  set_target_properties(artesian PROPERTIES INSTALL_RPATH ${ARTESIAN_TORCH_DIR}/lib)
  add_dependencies(installed artesian)
  install(TARGETS artesian DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES python/artesian_tokenize.py DESTINATION ${CMAKE_INSTALL_DATADIR}/artesian/python)
  install(FILES python/artesian/trackers.py python/artesian/report.py
    DESTINATION ${CMAKE_INSTALL_DATADIR}/artesian/python/artesian)
endif()
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
