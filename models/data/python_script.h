// Finds Python and the Python scripts that Artesian's programs run.
#pragma once

#include <string>
#include <vector>

namespace artesian::models {

/// Returns the Python to run: the one that ARTESIAN_PYTHON names, else that of the build
/// environment, else python3 on PATH.
std::string script_python();

/// The folder of the scripts: beside an installed program, else in the tree that it was built from.
std::string script_folder();

/// Our environment, with the folder of the scripts at the end of PYTHONPATH.
std::vector<std::string> script_environment();

/// The words as exec and spawn take them, with a null pointer at the end. They must outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& words);

}  // namespace artesian::models
