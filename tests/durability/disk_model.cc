#include "tests/durability/disk_model.h"

#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace tandem::tests {

namespace fs = std::filesystem;

std::vector<IoRecord> ReadIoLog(const fs::path& log) {
  std::ifstream in(log, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::vector<IoRecord> records;
  for (size_t at = 0; at + sizeof(IoHead) <= bytes.size();) {
    IoHead head;
    std::memcpy(&head, bytes.data() + at, sizeof head);
    at += sizeof head;
    if (head.magic != IoHead().magic) throw std::runtime_error("the log of changes is broken");
    const size_t rest = size_t{head.path_bytes} + head.second_bytes + head.data_bytes;
    if (at + rest > bytes.size()) break;
    IoRecord record{head.kind, head.node, head.offset, head.flags, {}, {}, {}};
    const auto take = [&](size_t n) { return bytes.substr(std::exchange(at, at + n), n); };
    record.path = take(head.path_bytes);
    record.second = take(head.second_bytes);
    record.data = take(head.data_bytes);
    records.push_back(std::move(record));
  }
  return records;
}

DiskModel::DiskModel(fs::path root) : root_(std::move(root)) {
  top_->is_dir = true;
  struct stat status {};
  if (stat(root_.c_str(), &status) != 0) throw std::runtime_error(root_.string() + " is not there");
  by_number_[status.st_ino] = top_;
}

std::string DiskModel::Relative(const std::string& path) const {
  return fs::path(path).lexically_normal().lexically_relative(root_).string();
}

DiskModel::Node& DiskModel::ParentOf(const std::string& path, std::string* name) {
  const fs::path relative = Relative(path);
  Node* dir = top_.get();
  for (const fs::path& part : relative.parent_path()) {
    const auto found = dir->entries.find(part);
    if (found == dir->entries.end()) {
      throw std::runtime_error("the recorder missed how " + path + " came to be");
    }
    dir = found->second.get();
  }
  *name = relative.filename();
  return *dir;
}

void DiskModel::Write(std::string* content, int64_t offset, const std::string& data) {
  if (offset < 0) {
    content->resize(static_cast<size_t>(-1 - offset));
    return;
  }
  const auto begin = static_cast<size_t>(offset);
  if (content->size() < begin + data.size()) content->resize(begin + data.size());
  content->replace(begin, data.size(), data);
}

void DiskModel::Change(Node& file, int64_t offset, const std::string& data) {
  Write(&file.content, offset, data);
  file.version = ++n_changes_;
  file.unsynced.emplace_back(offset, data);
}

void DiskModel::Open(const IoRecord& record) {
  std::string name;
  Node& dir = ParentOf(record.path, &name);
  NodePtr& file = dir.entries[name];
  // A file that no record created, for instance a child's log, enters the model here.
  if (!file) file = std::make_shared<Node>();
  by_number_[record.node] = file;
  if ((record.flags & kEmpties) != 0 && !file->content.empty()) Change(*file, -1, "");
}

void DiskModel::Rename(const IoRecord& record) {
  std::string from_name;
  std::string to_name;
  Node& from = ParentOf(record.path, &from_name);
  Node& to = ParentOf(record.second, &to_name);
  const auto moved = from.entries.find(from_name);
  if (moved == from.entries.end()) {
    throw std::runtime_error("the recorder missed how " + record.path + " came to be");
  }
  if ((record.flags & kExchanges) != 0) {
    std::swap(moved->second, to.entries[to_name]);
    return;
  }
  const NodePtr node = moved->second;
  from.entries.erase(moved);
  to.entries[to_name] = node;
}

void DiskModel::Apply(const IoRecord& record) {
  std::string name;
  const auto node = by_number_.find(record.node);
  const bool is_known = node != by_number_.end();
  switch (record.kind) {
    case IoKind::kOpen:
      return Open(record);
    case IoKind::kWrite:
      if (is_known) Change(*node->second, record.offset, record.data);
      return;
    case IoKind::kTruncate:
      if (is_known) Change(*node->second, -1 - record.offset, "");
      return;
    case IoKind::kSync:
      if (!is_known) return;
      node->second->synced = node->second->content;
      node->second->synced_version = node->second->version;
      node->second->unsynced.clear();
      node->second->synced_entries = node->second->entries;
      return;
    case IoKind::kRename:
      return Rename(record);
    case IoKind::kRemove:
      ParentOf(record.path, &name).entries.erase(name);
      return;
    case IoKind::kMakeDir: {
      const auto dir = std::make_shared<Node>();
      dir->is_dir = true;
      ParentOf(record.path, &name).entries[name] = dir;
      by_number_[record.node] = dir;
      return;
    }
    case IoKind::kLink: {
      const NodePtr linked = ParentOf(record.path, &name).entries.at(name);
      ParentOf(record.second, &name).entries[name] = linked;
      return;
    }
    case IoKind::kSymlink: {
      const auto link = std::make_shared<Node>();
      link->is_link = true;
      link->content = link->synced = record.second;
      ParentOf(record.path, &name).entries[name] = link;
      return;
    }
    case IoKind::kMap:
    case IoKind::kMark:
      return;
  }
}

std::string DiskModel::ContentAfter(const Node& node, Loss loss, std::mt19937& random) {
  if (loss == Loss::kNothing || loss == Loss::kNames) return node.content;
  std::string content = node.synced;
  if (loss != Loss::kSome) return content;
  for (const auto& [offset, data] : node.unsynced) {
    if (offset < 0) {
      if (random() % 2 != 0) Write(&content, offset, data);
      continue;
    }
    // Each sector of a piece reaches the disk or does not.
    constexpr size_t kSectorBytes = 512;
    for (size_t at = 0; at < data.size(); at += kSectorBytes) {
      if (random() % 2 == 0) continue;
      Write(&content, offset + static_cast<int64_t>(at), data.substr(at, kSectorBytes));
    }
  }
  return content;
}

std::map<std::string, DiskModel::NodePtr> DiskModel::EntriesAfter(const Node& dir, Loss loss,
                                                                  std::mt19937& random) {
  if (loss == Loss::kNothing || loss == Loss::kContents) return dir.entries;
  std::map<std::string, NodePtr> entries = dir.synced_entries;
  if (loss != Loss::kSome) return entries;
  for (const auto& [name, node] : dir.entries) {
    if (random() % 2 != 0) entries[name] = node;
  }
  for (const auto& [name, node] : dir.synced_entries) {
    if (!dir.entries.contains(name) && random() % 2 != 0) entries.erase(name);
  }
  return entries;
}

void DiskModel::Collect(const Node& dir, const std::string& prefix, Loss loss, std::mt19937& random,
                        DiskState* state) {
  for (const auto& [name, node] : EntriesAfter(dir, loss, random)) {
    if (node->is_link) continue;  // no checked file is a link
    const std::string path = prefix + name;
    if (node->is_dir) {
      (*state)[path + "/"];
      Collect(*node, path + "/", loss, random, state);
    } else {
      (*state)[path] = ContentAfter(*node, loss, random);
    }
  }
}

void DiskModel::AddToDigest(const Node& dir, Loss loss, size_t* digest) {
  constexpr size_t kPrime = 1099511628211u;
  const bool all_names = loss == Loss::kNothing || loss == Loss::kContents;
  const bool all_contents = loss == Loss::kNothing || loss == Loss::kNames;
  for (const auto& [name, node] : all_names ? dir.entries : dir.synced_entries) {
    *digest = (*digest + std::hash<std::string>()(name)) * kPrime;
    *digest = (*digest + (all_contents ? node->version : node->synced_version)) * kPrime;
    if (node->is_dir) AddToDigest(*node, loss, digest);
    *digest = (*digest + 1) * kPrime;
  }
}

size_t DiskModel::Digest(Loss loss) const {
  size_t digest = 0;
  if (loss == Loss::kSome) {
    AddToDigest(*top_, Loss::kNothing, &digest);
    AddToDigest(*top_, Loss::kUnsynced, &digest);
  } else {
    AddToDigest(*top_, loss, &digest);
  }
  return digest;
}

DiskState DiskModel::After(Loss loss, std::mt19937& random) const {
  DiskState state;
  Collect(*top_, "", loss, random, &state);
  return state;
}

void PutOnDisk(const DiskState& state, const fs::path& dir) {
  fs::remove_all(dir);
  fs::create_directories(dir);
  for (const auto& [path, content] : state) {
    if (path.ends_with('/')) {
      fs::create_directories(dir / path);
      continue;
    }
    std::ofstream(dir / path, std::ios::binary) << content;
  }
}

}  // namespace tandem::tests
