#include "server/wire/version.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "server/cli/verbs.h"
#include "server/wire/third_party.h"

namespace tandem::server {
namespace {

// Licences are SPDX expressions.
void PrintLicenses() {
  const std::string_view libraries = ThirdPartyText();
  std::printf(
      "Tandem %s\n"
      "  Licence: Apache-2.0\n"
      "  Copyright: the authors of Tandem\n"
      "\n"
      "It contains or uses these libraries. Packages have the full texts in /usr/share/doc, the "
      "portable\n"
      "release has them in LICENSES.txt.\n"
      "\n"
      "%.*s",
      VersionNumber().c_str(), static_cast<int>(libraries.size()), libraries.data());
}

}  // namespace

std::string VersionLine() {
  return "tandem " + VersionNumber() + " (commit " + VersionCommit() + ", " + VersionBuild() + ")";
}

void AddVersion(CLI::App& command, int&) {
  const auto wants_licenses = std::make_shared<bool>(false);
  command.add_flag("--licenses", *wants_licenses,
                   "print the licences of the program and of each library in it");
  command.callback([wants_licenses] {
    if (*wants_licenses) {
      PrintLicenses();
    } else {
      std::printf("%s\n", VersionLine().c_str());
    }
  });
}

}  // namespace tandem::server
