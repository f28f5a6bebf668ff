// Converts text to token ids with the Python script artesian_tokenize, in a separate process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/data/token_source.h"

namespace artesian::models {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // text files, JSON lines or folders: one stream
  // if set: all are JSON lines with the text in this field
  std::optional<std::string> text_field = {};
  std::string tokenizer_file;  // tokenizer.json
  std::int64_t vocab_size = 0;
  std::function<bool()> stopped = {};  // polled: whether to stop
  // called with the file's path while it has a name
  std::function<void(const std::string& path)> made = {};
};

/// Runs `python3 -m artesian_tokenize` with a temporary output file, which is unlinked when this
/// returns and freed with the source. The Python is the one in ARTESIAN_PYTHON, else that of the
/// build environment, else python3 on PATH. Progress lines are logged. The process is killed if the
/// calling thread ends first. Errors: Invalid, with the script's last output; Cancelled by SIGINT
/// or `stopped`.
Result<std::unique_ptr<TokenSource>> tokenize_text(const TokenizeOptions& options);

/// The script's file, on whose content the tokens depend, too.
std::string tokenize_script();

}  // namespace artesian::models
