# Third-party libraries that come without CMake files, as imported targets. Also installed, and
# included by artesian-config.cmake: so nothing installed holds a path of the machine that built it.
# artesian_find_library(name library header): artesian::<name>, or a variable that says what lacks.
function(artesian_find_library name library header)
  if(TARGET artesian::${name})
    return()
  endif()
  find_library(ARTESIAN_${name}_LIBRARY ${library})
  find_path(ARTESIAN_${name}_INCLUDE_DIR ${header})
  mark_as_advanced(ARTESIAN_${name}_LIBRARY ARTESIAN_${name}_INCLUDE_DIR)
  if(NOT ARTESIAN_${name}_LIBRARY OR NOT ARTESIAN_${name}_INCLUDE_DIR)
    set(artesian_missing_library "lib${library} with ${header} (Debian: see dev/packages.txt)"
      PARENT_SCOPE)
    return()
  endif()
  add_library(artesian::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(artesian::${name} PROPERTIES
    IMPORTED_LOCATION "${ARTESIAN_${name}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${ARTESIAN_${name}_INCLUDE_DIR}")
endfunction()
