// Text to token ids by the Python script artesian_tokenize, in a process of its own.
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
  std::vector<std::string> inputs;             // text files, JSON lines or folders: one stream
  std::optional<std::string> text_field = {};  // all are JSON lines, with the text in this field
  std::string tokenizer_file;                  // tokenizer.json
  std::int64_t vocab_size = 0;
  std::function<bool()> stopped = {};                      // asked now and then: end it
  std::function<void(const std::string& path)> made = {};  // the file, while it has a name
};

/// Runs `python3 -m artesian_tokenize` into a temporary file, which has no name any more when this
/// returns: it goes with the source. The Python is what ARTESIAN_PYTHON names, else that of the
/// environment that we were built with, else python3 on PATH. Progress lines are logged. The
/// process ends with the thread that calls this, if that comes first.
/// Errors: Invalid, with what the script said last; Cancelled by SIGINT, or as `stopped` said.
Result<std::unique_ptr<TokenSource>> tokenize_text(const TokenizeOptions& options);

/// The script's file: what tokens depend on beside text and tokenizer.
std::string tokenize_script();

}  // namespace artesian::models
