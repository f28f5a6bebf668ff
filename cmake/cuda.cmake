# CUDA is optional: with a working toolkit the kernels' CUDA files are built (no GPU is needed for
# that), without one the same commands build a CPU-only product, and one line says which it is.
set(ARTESIAN_HAVE_CUDA OFF)

# artesian_check_cuda(result): whether this CMake can work with the nvcc that was found: an older one
# may not know the flags of a newer toolkit, and enable_language would end the configuration. Tried
# once, in a project of its own.
function(artesian_check_cuda result)
  set(key "${CMAKE_CUDA_COMPILER} ${CMAKE_VERSION}")
  if(NOT "${ARTESIAN_CUDA_TRIED}" STREQUAL "${key}")
    set(folder ${CMAKE_BINARY_DIR}/cuda_tried)
    file(REMOVE_RECURSE ${folder})
    file(WRITE ${folder}/kernel.cu "__global__ void kernel() {}\n")
    file(WRITE ${folder}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)\n"
      "project(tried LANGUAGES NONE)\n"
      "set(CMAKE_CUDA_ARCHITECTURES 80)\nset(CMAKE_CUDA_STANDARD 20)\n"
      "set(CMAKE_CUDA_STANDARD_REQUIRED ON)\nenable_language(CXX)\nenable_language(CUDA)\n"
      "add_library(tried STATIC kernel.cu)\n")
    execute_process(COMMAND ${CMAKE_COMMAND} -G ${CMAKE_GENERATOR}
      -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
      -S ${folder} -B ${folder}/build RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    set(works ON)
    if(failed)
      set(works OFF)
    endif()
    set(ARTESIAN_CUDA_WORKS ${works} CACHE INTERNAL "This CMake can work with this nvcc")
    set(ARTESIAN_CUDA_TRIED "${key}" CACHE INTERNAL "The nvcc and CMake that ARTESIAN_CUDA_WORKS is about")
  endif()
  set(${result} ${ARTESIAN_CUDA_WORKS} PARENT_SCOPE)
endfunction()

if(NOT ARTESIAN_CUDA)
  message(STATUS "CUDA kernels: not built (ARTESIAN_CUDA is OFF)")
elseif(ARTESIAN_SANITIZE)
  message(STATUS "CUDA kernels: not built (nvcc does not take -fsanitize)")
else()
  # The toolkit's installer does not put nvcc on PATH.
  find_program(ARTESIAN_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(ARTESIAN_NVCC)
    set(ENV{CUDACXX} ${ARTESIAN_NVCC})
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  set(cuda_works OFF)
  if(CMAKE_CUDA_COMPILER)
    artesian_check_cuda(cuda_works)
  endif()
  if(CMAKE_CUDA_COMPILER AND NOT cuda_works)
    message(STATUS "CUDA kernels: not built (CMake ${CMAKE_VERSION} does not work with "
      "${CMAKE_CUDA_COMPILER}; a newer CMake may, such as that of `make build`)")
  elseif(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)  # here, so that every folder sees its targets
    set(ARTESIAN_HAVE_CUDA ON)
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    message(STATUS "CUDA kernels: built for sm_80 and sm_90 by ${CMAKE_CUDA_COMPILER}")
  else()
    message(STATUS "CUDA kernels: not built (no working nvcc found)")
  endif()
endif()

# artesian_cuda_kernels(name): the folder's .cu files as artesian_<name>, where there is a toolkit and
# at least one file; users test for the target.
function(artesian_cuda_kernels name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  if(NOT ARTESIAN_HAVE_CUDA OR NOT sources)
    return()
  endif()
  add_library(artesian_${name} STATIC ${sources})
  target_link_libraries(artesian_${name} PUBLIC $<BUILD_INTERFACE:artesian_flags> artesian_base)
  # --fmad=false for the same reason as -ffp-contract=off: the same bits as the CPU kernels.
  target_compile_options(artesian_${name} PRIVATE
    --fmad=false -Xcompiler=-Wall,-Wextra,-Wshadow)
  if(ARTESIAN_WARNINGS_AS_ERRORS)
    target_compile_options(artesian_${name} PRIVATE --Werror=all-warnings -Xcompiler=-Werror)
  endif()
endfunction()
