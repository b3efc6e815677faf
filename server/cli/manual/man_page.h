#pragma once

#include <string>
#include <vector>

#include "server/cli/manual/verb_doc.h"

namespace tandem::server {

// A manual page in troff with the macros of man(7).
struct ManPage {
  std::string name;  // "tandem-serve"
  int section = 1;
  std::string text;

  std::string FileName() const { return name + "." + std::to_string(section); }
};

// The page of the program, one of each of its verbs, and tandem.yaml(5) about the configuration
// file of `tandem serve`.
std::vector<ManPage> ManPages(const VerbDoc& root);

}  // namespace tandem::server
