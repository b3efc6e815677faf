#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// A secret in a file. It never holds the secret itself.
struct FoundSecret {
  std::string file;
  int64_t line = 0;  // from 1; 0: the file as a whole
  std::string what;  // "access token of the Hugging Face hub"
};

// The kinds of secrets in one line of text. YAML may name a variable on the previous line.
std::vector<std::string> SecretsInLine(std::string_view line, std::string_view previous = {});

// Scans the regular files of a tree, sorted by path. Skips `.git`, links, and files with a NUL in
// their first 8 KiB; reads the others piece by piece. Throws kNotFound and kIo: an unreadable file
// is an error, not a clean one.
std::vector<FoundSecret> ScanForSecrets(const std::filesystem::path& dir);

}  // namespace tandem::server
