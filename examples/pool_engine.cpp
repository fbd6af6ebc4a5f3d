// A block pool as an engine of its own: level `pool` of spec/PROTOCOL.md, in one file of C++17.
//
//     g++ -std=c++17 -O2 -o pool_engine pool_engine.cpp
//
// Theory of operation. `main` reads a line, has `Pool` do what it says, and writes a line. Above it
// stands as much JSON as the protocol needs: a reader that makes a tree of `Json`, and writers for
// numbers and texts. The pool is five tables: the free queue, the reference counts, the key on each
// block, the blocks that carry each key, and the names of keys. A key stands for (namespace, all
// that comes before, the block's own tokens); it is numbered when it is first seen, by a look-up of
// (key of the block before, tokens). Numbers are never given twice, so two keys cannot be confused.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Ints = std::vector<std::int64_t>;

// --- JSON ----------------------------------------------------------------------------------------

struct Json {
  enum Kind { Null, Bool, Number, Text, List, Object } kind = Null;
  bool flag = false;
  std::int64_t number = 0;  // the whole part; the pool has no use for another
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> fields;

  const Json& at(const std::string& name) const {
    auto found = fields.find(name);
    if (found == fields.end()) throw std::runtime_error("field " + name + " is missing");
    return found->second;
  }
  // A text that may be left out, or be null.
  std::optional<std::string> maybe(const std::string& name) const {
    auto found = fields.find(name);
    if (found == fields.end() || found->second.kind != Text) return std::nullopt;
    return found->second.text;
  }
  Ints ints() const {
    Ints all;
    for (const Json& item : items) all.push_back(item.number);
    return all;
  }
};

class Reader {
 public:
  explicit Reader(const std::string& line) : here(line.data()), end(here + line.size()) {}

  Json value() {
    Json v;
    switch (peek()) {
      case '{':
        v.kind = Json::Object;
        for (next(); !closes('}');) {
          std::string name = text();
          expect(':');
          v.fields[name] = value();
        }
        break;
      case '[':
        v.kind = Json::List;
        for (next(); !closes(']');) v.items.push_back(value());
        break;
      case '"':
        v.kind = Json::Text;
        v.text = text();
        break;
      case 't': case 'f': case 'n':
        v.kind = *here == 'n' ? Json::Null : Json::Bool;
        v.flag = *here == 't';
        here = std::min(end, here + (*here == 'f' ? 5 : 4));
        break;
      default:
        v.kind = Json::Number;
        number(v);
    }
    return v;
  }

 private:
  const char* here;
  const char* end;

  char peek() {
    while (here < end && (*here == ' ' || *here == '\t' || *here == '\r')) ++here;
    if (here == end) throw std::runtime_error("the line ends too soon");
    return *here;
  }
  char next() {
    if (here == end) throw std::runtime_error("the line ends too soon");
    return *here++;
  }
  void expect(char c) {
    if (peek() != c) throw std::runtime_error(std::string("expected ") + c);
    ++here;
  }
  // Whether the list or object ends here; takes the comma between two of its items.
  bool closes(char c) {
    if (peek() == ',') next();
    if (peek() != c) return false;
    next();
    return true;
  }
  void number(Json& v) {
    char* after = nullptr;
    v.number = std::strtoll(here, &after, 10);  // a line ends in 0, so it stops there at the latest
    if (after == here) throw std::runtime_error("expected a value");
    for (here = after; here < end && *here != ',' && *here != ']' && *here != '}';) ++here;
  }
  std::string text() {
    expect('"');
    std::string all;
    for (char c = next(); c != '"'; c = next()) {
      if (c != '\\') { all += c; continue; }
      switch (char e = next()) {
        case 'b': all += '\b'; break;
        case 'f': all += '\f'; break;
        case 'n': all += '\n'; break;
        case 'r': all += '\r'; break;
        case 't': all += '\t'; break;
        case 'u': code(all); break;
        default: all += e;
      }
    }
    return all;
  }
  unsigned hex() {
    std::string digits;
    for (int i = 0; i < 4; ++i) digits += next();
    return static_cast<unsigned>(std::stoul(digits, nullptr, 16));
  }
  void code(std::string& all) {  // as UTF-8; what lies beyond 16 bits is two of these
    unsigned c = hex();
    if (c >= 0xD800 && c < 0xDC00) {
      expect('\\');
      expect('u');
      c = 0x10000 + ((c - 0xD800) << 10) + (hex() - 0xDC00);
    }
    auto put = [&](unsigned byte) { all += static_cast<char>(byte); };
    if (c < 0x80) { put(c); return; }
    if (c < 0x800) { put(0xC0 | c >> 6); }
    else if (c < 0x10000) { put(0xE0 | c >> 12); put(0x80 | (c >> 6 & 63)); }
    else { put(0xF0 | c >> 18); put(0x80 | (c >> 12 & 63)); put(0x80 | (c >> 6 & 63)); }
    put(0x80 | (c & 63));
  }
};

std::string quoted(const std::string& text) {
  std::string all = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') all += '\\';
    all += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return all + '"';
}

std::string list(const Ints& numbers) {
  std::string all = "[";
  for (std::int64_t n : numbers) all += (all.size() > 1 ? "," : "") + std::to_string(n);
  return all + "]";
}

// --- the pool ------------------------------------------------------------------------------------

// Blocks, the free queue, and the index of what can be found. Each verb returns the fields of its
// answer.
class Pool {
 public:
  Pool(const Json& config, const Json& policy)
      : size(config.at("block_size").number),
        newest(policy.at("lookup").text == "newest"),
        tail_first(policy.at("free_walk").text == "tail_first"),
        to_head(policy.at("unhashed").text == "to_head") {
    std::int64_t blocks = config.at("num_blocks").number;
    for (std::int64_t b = policy.at("null_block").flag ? 1 : 0; b < blocks; ++b) free.push_back(b);
    usable = free.size();
    refs.assign(blocks, 0);
    carried.assign(blocks, NONE);
  }

  std::string match(const Json& space, const Ints& text, std::int64_t limit) {
    Ints hits;
    for (std::int64_t key : keys(space, text)) {
      auto found = index.find(key);
      if (found == index.end() || std::int64_t(hits.size()) >= limit) break;
      hits.push_back(newest ? found->second.back() : found->second.front());
    }
    return "\"blocks\":" + list(hits);
  }

  std::string acquire(const Ints& hits) {
    for (std::int64_t b : hits)
      if (refs.at(b)++ == 0) take(free, b);
    return "";
  }

  std::string extend(std::int64_t count) {
    if (count < 0 || count > std::int64_t(free.size()))
      throw std::runtime_error("too few free blocks");
    Ints taken(free.begin(), free.begin() + count);
    free.erase(free.begin(), free.begin() + count);
    for (std::int64_t b : taken) {
      refs[b] = 1;
      forget(b);
    }
    return "\"blocks\":" + list(taken);
  }

  std::string publish(const Ints& table, const Json& space, const Ints& text, std::int64_t start,
                      std::int64_t stop) {
    Ints all = keys(space, text);
    for (std::int64_t i = start; i < stop; ++i)
      if (all.at(i) == NONE || refs.at(table.at(i)) == 0 || carried[table[i]] != NONE)
        throw std::runtime_error("a block is free, or published already");
    for (std::int64_t i = start; i < stop; ++i) {
      carried[table[i]] = all[i];
      index[all[i]].push_back(table[i]);
    }
    return "";
  }

  std::string release(const Ints& table) {
    for (std::int64_t b : table)
      if (refs.at(b) == 0) throw std::runtime_error("a block is free");
    Ints walk = table, head, tail;
    if (tail_first) std::reverse(walk.begin(), walk.end());
    for (std::int64_t b : walk)
      if (--refs[b] == 0) (to_head && carried[b] == NONE ? head : tail).push_back(b);
    free.insert(free.begin(), head.begin(), head.end());
    free.insert(free.end(), tail.begin(), tail.end());
    return "";
  }

  std::string clear() {
    bool whole = free.size() == usable;
    if (whole)
      for (std::int64_t b : free) forget(b);
    return std::string("\"done\":") + (whole ? "true" : "false");
  }

  std::string see() const {
    std::string entries;
    for (const auto& [key, blocks] : index)
      entries += std::string(entries.empty() ? "" : ",") + "{\"key\":\"k" + std::to_string(key) +
                 "\",\"blocks\":" + list(blocks) + "}";
    return "\"free\":" + list(free) + ",\"ref_counts\":" + list(refs) + ",\"index\":[" + entries +
           "]";
  }

 private:
  static constexpr std::int64_t NONE = -1;
  std::int64_t size;
  bool newest, tail_first, to_head;
  std::size_t usable = 0;
  Ints free, refs, carried;
  std::map<std::int64_t, Ints> index;  // key: the blocks that carry it, the oldest first
  using Maybe = std::optional<std::string>;
  std::map<std::pair<Maybe, Maybe>, std::int64_t> spaces;
  std::map<std::pair<std::int64_t, Ints>, std::int64_t> names;  // (key before, tokens)
  std::int64_t numbers = 0;

  // The keys of all full blocks of a text.
  Ints keys(const Json& space, const Ints& text) {
    auto [root, fresh] = spaces.try_emplace({space.maybe("adapter"), space.maybe("salt")}, numbers);
    numbers += fresh;
    Ints all;
    std::int64_t before = root->second;
    for (std::size_t end = size; end <= text.size(); end += size) {
      Ints tokens(text.begin() + (end - size), text.begin() + end);
      auto [name, first] = names.try_emplace({before, tokens}, numbers);
      numbers += first;
      all.push_back(before = name->second);
    }
    return all;
  }
  // Takes the key off a block; other blocks may carry the same.
  void forget(std::int64_t b) {
    auto found = index.find(std::exchange(carried[b], NONE));
    if (found == index.end()) return;
    take(found->second, b);
    if (found->second.empty()) index.erase(found);
  }
  static void take(Ints& blocks, std::int64_t b) {
    blocks.erase(std::remove(blocks.begin(), blocks.end(), b), blocks.end());
  }
};

// --- the loop ------------------------------------------------------------------------------------

std::string answer(std::optional<Pool>& pool, const Json& r) {
  const std::string& verb = r.at("verb").text;
  if (verb == "hello") {
    pool.reset();
    if (r.at("protocol").number != 1) return "\"unsupported\":\"a protocol that is not 1\"";
    pool.emplace(r.at("config"), r.at("policy"));
    return "\"protocol\":1,\"name\":\"example pool in C++\",\"version\":\"1\",\"level\":\"pool\"";
  }
  if (!pool) throw std::runtime_error("hello comes first");
  if (verb == "match")
    return pool->match(r.at("namespace"), r.at("text").ints(), r.at("limit").number);
  if (verb == "acquire") return pool->acquire(r.at("hits").ints());
  if (verb == "extend") return pool->extend(r.at("count").number);
  if (verb == "publish")
    return pool->publish(r.at("table").ints(), r.at("namespace"), r.at("text").ints(),
                         r.at("start").number, r.at("stop").number);
  if (verb == "release") return pool->release(r.at("table").ints());
  if (verb == "clear") return pool->clear();
  if (verb == "see_pool") return pool->see();
  throw std::runtime_error("unknown verb " + verb);
}

int main() {
  std::ios::sync_with_stdio(false);
  std::optional<Pool> pool;
  for (std::string line; std::getline(std::cin, line);) {
    std::string seq = "0", fields;
    try {
      Json request = Reader(line).value();
      seq = std::to_string(request.at("seq").number);
      fields = answer(pool, request);
    } catch (const std::exception& error) {
      fields = "\"error\":" + quoted(error.what());
    }
    std::cout << "{\"seq\":" << seq << (fields.empty() ? "" : ",") << fields << "}" << std::endl;
  }
}
