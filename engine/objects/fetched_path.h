#pragma once

#include <filesystem>
#include <stop_token>
#include <string>

#include "engine/objects/object_options.h"
#include "engine/objects/object_url.h"

namespace tandem::engine {

// Fetches an object, or the tree of all objects below a key, into the cache of downloads and
// returns its path there: a file or a directory. Fetches only what the cache lacks. A GGUF file in
// several parts ("…-00001-of-00003.gguf") is fetched with its other parts. While the store is
// unreachable, or offline, the version in the cache is used. Progress is one ProgressTask; a
// pending SIGINT or SIGTERM stops, and the next call resumes. Throws like ObjectClient, and kIo.
//
//   <cache>/objects--s3--BUCKET--NAME--<hash>/   hash of the endpoint and the URL
//           blobs/<hash>                         content, named by key, size and ETag
//           blobs/<hash>.incomplete              the first bytes of one
//           trees/<hash>/                        the files of a version, hard links to blobs
//           latest                               name of the newest tree
//           lock                                 held by the process that fetches
std::filesystem::path FetchObjectPath(const ObjectUrl& url, const ObjectOptions& options,
                                      std::stop_token stop = {});

// Resolves a path of `--model` or a spec: fetches `s3://` and `gs://` URLs, and resolves all others
// with PulledPath.
std::string FetchedPath(const std::string& path, const std::string& hub_token = "");

}  // namespace tandem::engine
