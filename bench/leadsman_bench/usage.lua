-- The usage that an engine reports, as dynamic metadata for the access log.
-- Both APIs' names are read; of several reports (Anthropic's stream has two) the last one counts.
-- The end of each piece is kept, since a report may be split over two pieces. A text that speaks
-- of usage has its quotes escaped, and is never found. SGLang's own API tells it with each piece of
-- a stream; of several prompts, whose pieces have a number, it is not told, as none has all of it.
local KEEP = 1024

local function report(metadata, text, at)
  local function count(name)
    local digits = text:match('"' .. name .. '":%s*(%d+)', at)
    return digits and tonumber(digits)
  end
  local cached = count('cached_tokens') or count('cache_read_input_tokens')
  local prompt = count('prompt_tokens')
  local fresh = count('input_tokens')
  if not prompt and fresh then
    prompt = fresh + (cached or 0) + (count('cache_creation_input_tokens') or 0)
  end
  local completion = count('completion_tokens') or count('output_tokens')
  if prompt then metadata:set('epp.usage', 'prompt_tokens', prompt) end
  if completion then metadata:set('epp.usage', 'completion_tokens', completion) end
  if cached then metadata:set('epp.usage', 'cached_tokens', cached) end
end

local function each(metadata, text, name)
  local at = text:find(name)
  while at do
    report(metadata, text, at)
    at = text:find(name, at + 8)
  end
end

function envoy_on_response(handle)
  local kind = handle:headers():get('content-type') or ''
  if not kind:find('^text/event%-stream') and not kind:find('^application/json') then return end
  local rest = ''
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local text = rest .. chunk:getBytes(0, length)
      local metadata = handle:streamInfo():dynamicMetadata()
      each(metadata, text, '"usage":%s*{')
      if kind:find('^text') and not text:find('"index":%s*%d') then
        each(metadata, text, '"meta_info":%s*{')
      end
      rest = text:sub(-KEEP)
    end
  end
end
