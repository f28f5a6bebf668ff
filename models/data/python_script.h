// The Python scripts that our programs run: which Python, and where they are.
#pragma once

#include <string>
#include <vector>

namespace artesian::models {

/// The Python to run: what ARTESIAN_PYTHON names, else that of the environment that we were built
/// with, else python3 on PATH.
std::string script_python();

/// The folder of the scripts: beside an installed program, else in the tree that it was built from.
std::string script_folder();

/// Our environment, with the folder of the scripts at the end of PYTHONPATH.
std::vector<std::string> script_environment();

/// The words as exec and spawn take them, with a null pointer at the end. They must outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& words);

}  // namespace artesian::models
