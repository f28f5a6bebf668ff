// Text to token ids by the Python script artesian_tokenize, in a process of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "models/token_source.h"

namespace artesian::models {

struct TokenizeOptions {
  std::string input;           // a text file or a folder
  std::string tokenizer_file;  // tokenizer.json
  std::int64_t vocab_size = 0;
};

/// Runs `python3 -m artesian_tokenize` (the Python that ARTESIAN_PYTHON names, else python3 on
/// PATH) into a temporary file, which has no name any more when this returns: it goes with the
/// source. Progress lines are logged. Errors: Invalid, with what the script said last; Cancelled by
/// SIGINT.
Result<std::unique_ptr<TokenSource>> tokenize_text(const TokenizeOptions& options);

}  // namespace artesian::models
