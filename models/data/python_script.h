// Finds Python and the Python scripts that Artesian's programs run.
#pragma once

#include <string>
#include <vector>

namespace artesian::models {

/// Returns the Python to run: the one in ARTESIAN_PYTHON, else that of the build environment, else
/// python3 on PATH.
std::string script_python();

/// The folder of the scripts: beside an installed program, else in the source tree.
std::string script_folder();

/// This process's environment, with the folder of the scripts appended to PYTHONPATH.
std::vector<std::string> script_environment();

/// The words in the form that exec and spawn take, with a null pointer at the end. They must
/// outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& words);

}  // namespace artesian::models
