#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/hub/http_client.h"
#include "engine/hub/partial_blob.h"
#include "engine/hub/reference.h"

namespace tandem::engine {

// A file of a repository, as the hub's list describes it. Every field is an unverified claim.
struct RepoFile {
  std::string name;  // satisfies IsSafeFileName
  std::optional<uint64_t> size;
  std::string sha256;    // large files only; empty: unknown
  std::string git_sha1;  // small files only; empty: unknown
};

struct RepoInfo {
  std::string commit;
  std::vector<RepoFile> files;  // sorted by name

  // Returns nullptr when no file has this name.
  const RepoFile* Find(const std::string& name) const;
};

// Where to fetch a file, and the size and hash it must have.
struct FileLocation {
  BlobIdentity identity;
  Url url;
  bool is_elsewhere = false;  // not on the hub: no token, and valid for a limited time
};

// Both calls retry transient faults (Backoff). They throw kPermissionDenied for gated models,
// kNotFound, and kUnauthenticated for refused tokens.

// Returns the commit of `reference.revision` and its files. Throws kDataLoss when the reference
// names a commit and the hub answers with another one.
RepoInfo FetchRepoInfo(HttpClient& client, const HubReference& reference, const Patience& patience);
FileLocation LocateFile(HttpClient& client, const HubReference& reference,
                        const std::string& commit, const RepoFile& file);

// Throws an explanation of the hub's own answer with status 400 or above.
[[noreturn]] void ThrowHubStatus(const HttpHead& head, const Url& url,
                                 const HubReference& reference, const HubOptions& options);

// For example "https://huggingface.co/ORG/NAME/resolve/REVISION/folder/file".
std::string ResolveUrlOf(const HubOptions& options, const std::string& repo,
                         const std::string& revision, const std::string& name);

// Parses the API's description of a repository. Throws kDataLoss.
RepoInfo ParseRepoInfo(std::string_view text, const std::string& source);

}  // namespace tandem::engine
