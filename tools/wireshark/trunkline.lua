-- Wireshark dissector for the packets of Trunkline's shared connections (docs/wire-format.md).
--
-- It takes UDP port 4791, and leaves every packet whose opcode is not one of Trunkline's to the
-- dissector that had the port before, that of InfiniBand. docs/wireshark.md says how to install it.
--
-- Every length is looked at before anything is read. What cannot be read is told as the expert info
-- trunkline.malformed, and what the format forbids but can be read as trunkline.forbidden.

local trunkline = Proto("trunkline", "Trunkline shared connection")

trunkline.prefs.check_sums = Pref.bool("Check ICRC and HCRC", true,
    "Sum every packet. This takes most of the time of looking at large packets.")

local PORT = 4791
local BTH, EXT, RECORD, ICRC = 12, 40, 20, 4
local SEND, ANSWERS, CONTROL, VOID = 0xc0, 0xca, 0xcb, 0xcc
local ACK, CLOSE, PING, PACKED = 0xcd, 0xce, 0xcf, 0xd0

local OPCODES = {
    [SEND] = "SEND", [0xc1] = "SEND_IMM", [0xc2] = "SEND_INV", [0xc3] = "WRITE",
    [0xc4] = "WRITE_IMM", [0xc5] = "READ_REQ", [0xc6] = "READ_RESP", [0xc7] = "CMP_SWAP",
    [0xc8] = "FETCH_ADD", [0xc9] = "ATOMIC_RESP", [ANSWERS] = "ANSWERS",
    [CONTROL] = "CONTROL", [VOID] = "VOID", [ACK] = "ACK", [CLOSE] = "CLOSE", [PING] = "PING",
    [PACKED] = "PACKED",
}
local KINDS = { [1] = "BIND", [2] = "BOUND", [3] = "REFUSED", [4] = "UNBIND" }
local REASONS = { [0] = "the connection ends", [1] = "the node ends" }
local NAKS = {
    [0] = "PSN sequence", [1] = "invalid request", [2] = "remote access",
    [3] = "remote operational", [4] = "no such pair of QPs",
}
local SUMS = { [0] = "wrong", [1] = "right", [2] = "not checked" }

local f = {
    opcode = ProtoField.uint8("trunkline.opcode", "Opcode", base.HEX, OPCODES),
    solicited = ProtoField.bool("trunkline.solicited", "Solicited event", 8, nil, 0x80),
    pkey = ProtoField.uint16("trunkline.pkey", "P_Key", base.HEX),
    conn = ProtoField.uint24("trunkline.conn", "Connection (receiver's end)", base.HEX),
    ack_req = ProtoField.bool("trunkline.ack_req", "Acknowledge at once", 8, nil, 0x80),
    psn = ProtoField.uint64("trunkline.psn", "Packet number", base.DEC),
    version = ProtoField.uint8("trunkline.version", "Version", base.DEC, nil, 0xf0),
    last = ProtoField.bool("trunkline.last", "Last of its message", 8, nil, 0x01),
    has_hcrc = ProtoField.bool("trunkline.has_hcrc", "Has an HCRC", 8, nil, 0x02),
    abort = ProtoField.bool("trunkline.abort", "Abort", 8, nil, 0x04),
    sealed = ProtoField.bool("trunkline.sealed", "Sealed (reserved)", 8, nil, 0x08),
    attempt = ProtoField.uint8("trunkline.attempt", "Transmissions before this one"),
    generation = ProtoField.uint32("trunkline.generation", "Generation"),
    token = ProtoField.uint32("trunkline.token", "Token", base.HEX),
    src_qp = ProtoField.uint24("trunkline.src_qp", "Source QP", base.HEX),
    epoch = ProtoField.uint8("trunkline.epoch", "Replay epoch"),
    dst_qp = ProtoField.uint24("trunkline.dst_qp", "Destination QP", base.HEX),
    msn = ProtoField.uint32("trunkline.msn", "Message number"),
    offset = ProtoField.uint32("trunkline.offset", "Offset in the message"),
    outstanding = ProtoField.uint32("trunkline.outstanding", "READs and atomics outstanding"),
    timestamp = ProtoField.uint32("trunkline.timestamp", "Timestamp (16 ns)"),
    echo = ProtoField.uint32("trunkline.echo", "Echo (16 ns)"),
    ack = ProtoField.uint32("trunkline.ack", "Next packet number expected (low 32 bits)"),
    va = ProtoField.uint64("trunkline.va", "Virtual address", base.HEX),
    rkey = ProtoField.uint32("trunkline.rkey", "R_Key", base.HEX),
    dma_length = ProtoField.uint32("trunkline.dma_length", "Length of the whole message"),
    swap_or_add = ProtoField.uint64("trunkline.swap_or_add", "Swap or add", base.HEX),
    compare = ProtoField.uint64("trunkline.compare", "Compare", base.HEX),
    imm = ProtoField.uint32("trunkline.imm", "Immediate data", base.HEX),
    inv_rkey = ProtoField.uint32("trunkline.inv_rkey", "R_Key to invalidate", base.HEX),
    hcrc = ProtoField.uint32("trunkline.hcrc", "HCRC", base.HEX),
    hcrc_status = ProtoField.uint8("trunkline.hcrc.status", "HCRC is", base.DEC, SUMS),
    icrc = ProtoField.uint32("trunkline.icrc", "ICRC", base.HEX),
    icrc_status = ProtoField.uint8("trunkline.icrc.status", "ICRC is", base.DEC, SUMS),
    length = ProtoField.uint32("trunkline.length", "Bytes of payload"),
    payload = ProtoField.bytes("trunkline.payload", "Payload"),
    padding = ProtoField.bytes("trunkline.padding", "Padding"),
    original = ProtoField.uint64("trunkline.original", "What was there", base.HEX),
    reason = ProtoField.uint32("trunkline.reason", "Reason", base.DEC, REASONS),
    ce_count = ProtoField.uint32("trunkline.ce_count", "Packets with CE"),
    delay_ns = ProtoField.uint32("trunkline.delay_ns", "Delay of this ACK (ns)"),
    sack = ProtoField.uint64("trunkline.sack", "Bitmap entry", base.HEX),
    received = ProtoField.string("trunkline.received", "Arrived (low 32 bits)"),
    syndrome = ProtoField.uint8("trunkline.syndrome", "Syndrome", base.HEX),
    kind = ProtoField.uint8("trunkline.kind", "Kind", base.DEC, KINDS),
    status = ProtoField.uint32("trunkline.status", "Status"),
}
trunkline.fields = f

local e = {
    malformed = ProtoExpert.new("trunkline.malformed", "Malformed", expert.group.MALFORMED,
        expert.severity.ERROR),
    forbidden = ProtoExpert.new("trunkline.forbidden", "Against the format", expert.group.PROTOCOL,
        expert.severity.WARN),
    cut = ProtoExpert.new("trunkline.cut", "Cut short when it was captured",
        expert.group.UNDECODED, expert.severity.NOTE),
    wrong_sum = ProtoExpert.new("trunkline.wrong_sum", "Wrong sum", expert.group.CHECKSUM,
        expert.severity.WARN),
}
trunkline.experts = e

-- Adds each field of a list {field, offset, length} of a range. Numbers are big-endian.
local function add_all(tree, range, list)
    for _, at in ipairs(list) do
        tree:add(at[1], range(at[2], at[3]))
    end
end

local function malformed(tree, why)
    tree:add_proto_expert_info(e.malformed, why)
end

-- The sums. CRC-32 as in zlib, over strings.

local CRC_TABLE = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local half = bit.rshift(crc, 1)
        crc = bit.band(crc, 1) == 1 and bit.bxor(half, 0xedb88320) or half
    end
    CRC_TABLE[byte] = crc
end

local function crc_add(crc, text)
    local byte, band, bxor, rshift = string.byte, bit.band, bit.bxor, bit.rshift
    for i = 1, #text do
        crc = bxor(CRC_TABLE[band(bxor(crc, byte(text, i)), 0xff)], rshift(crc, 8))
    end
    return crc
end

local ip_field, ipv6_field, udp_field = Field.new("ip"), Field.new("ipv6"), Field.new("udp")

-- The innermost header of a protocol, as a string, or nil.
local function header_of(field, length)
    local found = { field() }
    local range = found[#found] and found[#found].range
    if range and range:len() >= length then
        return range(0, length):raw()
    end
end

-- What is summed before the BTH: with the fields that routers change as all ones. Nil where the
-- headers are not those of RoCEv2, or are not there because nobody asked for fields.
local function pseudo_header()
    local ones = string.rep("\255", 8)
    local udp = header_of(udp_field, 8)
    local ip, ipv6 = header_of(ip_field, 20), header_of(ipv6_field, 40)
    if not udp then
        return nil
    end
    udp = udp:sub(1, 6) .. "\255\255"
    if ip and not ipv6 and ip:byte(1) == 0x45 then
        return ones .. ip:sub(1, 1) .. "\255" .. ip:sub(3, 8) .. "\255" .. ip:sub(10, 10)
            .. "\255\255" .. ip:sub(13, 20) .. udp
    elseif ipv6 and not ip and ipv6:byte(7) == 17 then
        return ones .. "\111\255\255\255" .. ipv6:sub(5, 7) .. "\255" .. ipv6:sub(9, 40) .. udp
    end
end

-- Compares the sum of all that is before byte `at` with what stands there.
local function add_sum(tree, tvb, at, field, status_field)
    local range = tvb(at, ICRC)
    local item = tree:add_le(field, range)
    local before = trunkline.prefs.check_sums and pseudo_header()
    local status = 2
    if before then
        local crc = crc_add(bit.bnot(0), before)
        crc = crc_add(crc, tvb(0, 4):raw() .. "\255" .. tvb(5, at - 5):raw())
        status = bit.bnot(crc) == bit.tobit(range:le_uint()) and 1 or 0
    end
    tree:add(status_field, range, status):set_generated()
    if status == 0 then
        item:add_proto_expert_info(e.wrong_sum)
    end
end

-- Further headers: how many bytes they have, and how they are shown.

local RETH = {
    length = 16,
    fields = { { f.va, 0, 8 }, { f.rkey, 8, 4 }, { f.dma_length, 12, 4 } },
}
local ATOMIC = {
    length = 28,
    fields = { { f.va, 0, 8 }, { f.rkey, 8, 4 }, { f.swap_or_add, 12, 8 }, { f.compare, 20, 8 } },
}
local IMM = { length = 4, fields = { { f.imm, 0, 4 } } }
local INV = { length = 4, fields = { { f.inv_rkey, 0, 4 } } }
local FURTHER = {
    [0xc1] = { IMM }, [0xc2] = { INV }, [0xc3] = { RETH }, [0xc4] = { RETH, IMM },
    [0xc5] = { RETH }, [0xc7] = { ATOMIC }, [0xc8] = { ATOMIC },
}

local function further_length(opcode)
    local length = 0
    for _, header in ipairs(FURTHER[opcode] or {}) do
        length = length + header.length
    end
    return length
end

local function add_further(tree, range, opcode)
    local at = 0
    for _, header in ipairs(FURTHER[opcode] or {}) do
        add_all(tree, range(at, header.length), header.fields)
        at = at + header.length
    end
end

-- The fields that name a message: bytes 8 to 28 of the extension header, and a record's first 20.
-- What is not in the same places in both is added by the caller.
local function add_message(tree, range, opcode)
    local counts = FURTHER[opcode] and opcode >= 0xc5
    add_all(tree, range, {
        { f.src_qp, 0, 3 }, { f.epoch, 3, 1 }, { f.dst_qp, 4, 3 }, { f.msn, 12, 4 },
        { counts and f.outstanding or f.offset, 16, 4 },
    })
end

-- Payloads: what lengths they may have.

-- Bytes of those that have always as many.
local FIXED = { [0xc5] = 0, [0xc7] = 0, [0xc8] = 0, [0xc9] = 8, [VOID] = 0, [CLOSE] = 4 }
-- Bytes of an entry of those that are lists.
local ENTRY = { [ANSWERS] = 16, [CONTROL] = 20 }

-- Why no payload of the opcode has so many bytes, or nil.
local function wrong_length(opcode, length)
    local fixed, entry = FIXED[opcode], ENTRY[opcode]
    if fixed and length ~= fixed then
        return string.format("A payload of %d bytes belongs here", fixed)
    elseif entry and length % entry ~= 0 then
        return string.format("The payload is no list of entries of %d bytes", entry)
    elseif opcode == ACK and (length < 8 or length % 8 ~= 0 or length > 8 + 64 * 8) then
        return "An ACK has two words and at most 64 bitmap entries"
    end
end

-- Payloads: how they are shown. Each function gets a range of a length that is not wrong.

local function syndrome_text(syndrome)
    local value, kind = bit.band(syndrome, 0x1f), bit.rshift(syndrome, 5)
    if kind == 0 then
        return "done"
    elseif kind == 1 then
        return "RNR, timer " .. value
    elseif kind == 3 then
        return "NAK, " .. (NAKS[value] or "code " .. value)
    end
end

local function add_answer(tree, range)
    local text = syndrome_text(range(3, 1):uint())
    add_all(tree, range, {
        { f.dst_qp, 0, 3 }, { f.syndrome, 3, 1 }, { f.msn, 4, 4 }, { f.generation, 8, 2 },
        { f.epoch, 10, 1 }, { f.src_qp, 12, 3 },
    })
    tree:append_text(text and ": " .. text or "")
    if not text then
        malformed(tree, "No syndrome")
    end
end

local function add_control(tree, range)
    local kind = KINDS[range(0, 1):uint()]
    add_all(tree, range, {
        { f.kind, 0, 1 }, { f.src_qp, 1, 3 }, { f.epoch, 4, 1 }, { f.dst_qp, 5, 3 },
        { f.generation, 8, 4 }, { f.status, 12, 4 }, { f.msn, 16, 4 },
    })
    tree:append_text(kind and ": " .. kind or "")
    if not kind then
        malformed(tree, "No kind of entry")
    end
end

-- A list of entries, each shown by `add`.
local function entries(opcode, name, add)
    return function(tree, range)
        for at = 0, range:len() - ENTRY[opcode], ENTRY[opcode] do
            local entry = range(at, ENTRY[opcode])
            add(tree:add(trunkline, entry, name), entry)
        end
    end
end

-- The packet numbers of a bitmap entry, whose number 0 is `ack` + 1, as in "5-7,9".
local function arrived(entry, ack)
    local first = ack + 1 + 48 * entry(0, 2):uint()
    local spans, open = {}, nil
    for i = 0, 48 do
        local set = i < 48 and bit.band(entry(7 - math.floor(i / 8), 1):uint(),
            bit.lshift(1, i % 8)) ~= 0
        if set and not open then
            open = i
        elseif not set and open then
            local from, to = (first + open) % 0x100000000, (first + i - 1) % 0x100000000
            local text = string.format("%.0f", from)
            spans[#spans + 1] = from == to and text or text .. string.format("-%.0f", to)
            open = nil
        end
    end
    return table.concat(spans, ",")
end

local function add_acknowledgement(tree, range, ack)
    add_all(tree, range, { { f.ce_count, 0, 4 }, { f.delay_ns, 4, 4 } })
    for at = 8, range:len() - 8, 8 do
        local entry = range(at, 8)
        tree:add(f.sack, entry)
        tree:add(f.received, entry, arrived(entry, ack)):set_generated()
    end
end

local CONTENTS = {
    [0xc9] = function(tree, range) tree:add(f.original, range) end,
    [ANSWERS] = entries(ANSWERS, "Answer", add_answer),
    [CONTROL] = entries(CONTROL, "Entry", add_control),
    [ACK] = add_acknowledgement,
    [CLOSE] = function(tree, range) tree:add(f.reason, range) end,
    [PING] = function(tree, range) tree:add(f.padding, range) end,
}

-- `range` is nil where there are no bytes. `wrong` is whether the length is.
local function add_payload(tree, range, opcode, wrong, ack)
    tree:add(f.length, range and range:len() or 0):set_generated()
    local add = not wrong and CONTENTS[opcode]
    if range and add then
        add(tree, range, ack)
    elseif range then
        tree:add(f.payload, range)
    end
end

-- A range of a range, or nil where it has no bytes: Wireshark has no empty ranges.
local function part(range, at, length)
    return length > 0 and range(at, length) or nil
end

-- Shows the record at `at`, and returns where the next one is, or nil where there is none.
local function add_record(tree, range, at)
    local left = range:len() - at
    local header = range(at, RECORD)
    local opcode = header(7, 1):uint()
    if opcode < SEND or opcode > VOID then
        return malformed(tree, string.format("Opcode 0x%02x is none of a record", opcode))
    end
    local further = further_length(opcode)
    local length = bit.band(header(8, 2):uint(), 0x0fff)
    if RECORD + further + length > left then
        return malformed(tree, "A record is longer than what is left")
    end
    local whole = range(at, RECORD + further + length)
    local item = tree:add(trunkline, whole, "Record: " .. OPCODES[opcode])
    item:add(f.opcode, header(7, 1))
    add_message(item, header, opcode)
    item:add(f.solicited, header(8, 1), bit.band(header(8, 1):uint(), 0x10) * 8)
    item:add(f.abort, header(8, 1), bit.rshift(header(8, 1):uint(), 4))
    item:add(f.generation, header(10, 2))
    if further > 0 then
        add_further(item, whole(RECORD, further), opcode)
    end
    local wrong = wrong_length(opcode, length)
    if wrong and ENTRY[opcode] then
        malformed(item, wrong)
    elseif wrong and opcode ~= VOID then
        item:add_proto_expert_info(e.forbidden, wrong)
    end
    add_payload(item, part(whole, RECORD + further, length), opcode, wrong)
    return at + RECORD + further + length, OPCODES[opcode]
end

CONTENTS[PACKED] = function(tree, range)
    local at, names = 0, {}
    while range:len() - at >= RECORD and range(at + 7, 1):uint() ~= 0 do
        local name
        at, name = add_record(tree, range, at)
        if not at then
            return
        end
        names[#names + 1] = name
    end
    if at < range:len() then
        tree:add(f.padding, range(at))
    end
    tree:append_text(" (" .. table.concat(names, ", ") .. ")")
end

-- The packet.

local function add_base(tree, range, opcode)
    add_all(tree, range, {
        { f.opcode, 0, 1 }, { f.solicited, 1, 1 }, { f.pkey, 2, 2 }, { f.conn, 5, 3 },
        { f.ack_req, 8, 1 },
    })
    local flags = range(1, 1):uint()
    if bit.band(flags, 0x0f) ~= 0 then
        malformed(tree, "The transport version is not 0")
    elseif bit.band(flags, 0x30) ~= 0 then
        malformed(tree, "Packets of shared connections have no pad")
    end
end

-- What the format forbids and can be read all the same.
local function check_extension(tree, range, opcode)
    local flags = range(0, 1):uint()
    if bit.band(flags, 3) == 3 then
        tree:add_proto_expert_info(e.forbidden, "The last packet of a message has no HCRC")
    end
    if bit.band(flags, 8) ~= 0 then
        tree:add_proto_expert_info(e.forbidden, "SEALED is reserved")
    end
    local named = range(8, 3):uint() + range(12, 3):uint() ~= 0
    if named and opcode >= ANSWERS and opcode ~= VOID then
        tree:add_proto_expert_info(e.forbidden, "Packets of this kind belong to no QP")
    end
end

-- The whole packet number: bits 24 to 64 stand in the extension header. ACK and CLOSE have none.
local function packet_number(base_header, extension, opcode)
    local low = base_header(9, 3):uint()
    if opcode == ACK or opcode == CLOSE then
        return UInt64.new(low, 0)
    end
    return UInt64.new(extension(19, 1):uint() * 0x1000000 + low, extension(15, 4):uint())
end

local function add_extension(tree, base_header, range, opcode)
    add_all(tree, range, {
        { f.version, 0, 1 }, { f.last, 0, 1 }, { f.has_hcrc, 0, 1 }, { f.abort, 0, 1 },
        { f.sealed, 0, 1 }, { f.attempt, 1, 1 }, { f.generation, 2, 2 }, { f.token, 4, 4 },
    })
    add_message(tree, range(8, 20), opcode)
    tree:add(f.psn, range(15, 5), packet_number(base_header, range, opcode))
    add_all(tree, range, { { f.timestamp, 28, 4 }, { f.echo, 32, 4 }, { f.ack, 36, 4 } })
    if bit.rshift(range(0, 1):uint(), 4) ~= 1 then
        malformed(tree, "Only version 1 is known")
    end
    check_extension(tree, range, opcode)
end

local function describe(pinfo, tvb, opcode)
    local qps = ""
    if opcode < ANSWERS then
        qps = string.format(" QP 0x%06x -> 0x%06x, message %.0f, offset %.0f", tvb(20, 3):uint(),
            tvb(24, 3):uint(), tvb(32, 4):uint(), tvb(36, 4):uint())
    end
    pinfo.cols.protocol = "Trunkline"
    pinfo.cols.info = string.format("%s on 0x%06x, number %s%s", OPCODES[opcode], tvb(5, 3):uint(),
        tostring(packet_number(tvb(0, BTH), tvb(BTH, EXT), opcode)), qps)
end

-- What is behind the extension header: further headers, HCRC, payload, ICRC.
local function add_rest(tree, tvb, opcode)
    local further = further_length(opcode)
    local has_hcrc = bit.band(tvb(BTH, 1):uint(), 2) ~= 0
    local payload = BTH + EXT + further + (has_hcrc and ICRC or 0)
    local icrc = tvb:reported_len() - ICRC
    if icrc < payload then
        return malformed(tree, "The packet is shorter than its headers")
    end
    if tvb:len() < tvb:reported_len() then
        return tree:add_proto_expert_info(e.cut)
    end
    if further > 0 then
        add_further(tree, tvb(BTH + EXT, further), opcode)
    end
    if has_hcrc then
        add_sum(tree, tvb, payload - ICRC, f.hcrc, f.hcrc_status)
    end
    local wrong = wrong_length(opcode, icrc - payload)
    if wrong then
        malformed(tree, wrong)
    end
    local ack = tvb(BTH + 36, 4):uint()
    add_payload(tree, part(tvb, payload, icrc - payload), opcode, wrong, ack)
    add_sum(tree, tvb, icrc, f.icrc, f.icrc_status)
end

local udp_ports = DissectorTable.get("udp.port")
local infiniband = udp_ports:get_dissector(PORT)

-- What is malformed to the other dissector is told by it, and raised as an error here.
local function leave_to_infiniband(tvb, pinfo, tree)
    local sound, length = pcall(infiniband.call, infiniband, tvb, pinfo, tree)
    return sound and length or tvb:len()
end

function trunkline.dissector(tvb, pinfo, tree)
    local opcode = tvb:len() > 0 and tvb(0, 1):uint()
    if not OPCODES[opcode] then
        return infiniband and leave_to_infiniband(tvb, pinfo, tree) or 0
    end
    local root = tree:add(trunkline, tvb(), "Trunkline " .. OPCODES[opcode])
    if tvb:len() < BTH + EXT then
        if tvb:reported_len() < BTH + EXT + ICRC then
            malformed(root, "The packet is shorter than its headers")
        else
            root:add_proto_expert_info(e.cut)
        end
        return tvb:len()
    end
    describe(pinfo, tvb, opcode)
    add_base(root, tvb(0, BTH), opcode)
    add_extension(root, tvb(0, BTH), tvb(BTH, EXT), opcode)
    add_rest(root, tvb, opcode)
    return tvb:len()
end

udp_ports:add(PORT, trunkline)
